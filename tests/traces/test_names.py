"""Kernel names taken apart."""

import pytest

from atrex.traces.names import parse

MANGLED = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb1ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"


@pytest.mark.parametrize(
    ("name", "base", "args"),
    [
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, int)", "vllm::rms_norm_kernel",
         ("c10::BFloat16", "8", "2")),
        ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
         "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
         "vllm::fused_add_rms_norm_kernel", ("c10::BFloat16", "8")),
        ("void (anonymous namespace)::fused_qknorm_warp<128l, true, __nv_bfloat16>((anonymous namespace)::Params)",
         "fused_qknorm_warp", ("128", "true", "__nv_bfloat16")),
        ("void <unnamed>::softmax_warp_forward<float, (int)6, (bool)0, (bool)1>(T2 *, const T1 *)",
         "softmax_warp_forward", ("float", "6", "false", "true")),
        ("void at::native::unrolled_elementwise_kernel<at::native::copy(at::Base&)::{lambda()#3}::operator()()"
         " const::{lambda(int)#1}, std::array<char*, 2ul>, 4>(int)", "at::native::unrolled_elementwise_kernel", None),
        (MANGLED, "aiter::add_rmsnorm_quant_kernel", ("bf16", "bf16", "64", "8", "false", "true", "true", "1")),
        (MANGLED + ".kd", "aiter::add_rmsnorm_quant_kernel", None),
        ("_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE.kd", "ncclDevKernel_Generic_1", ()),
        ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS2_PKS2_i",
         "sgl_hip::activation::act_and_mul_kernel", ("__hip_bfloat16", "&silu<S2_>")),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_4PipeIDF16bEEEEEEvT_", "ck_tile::kentry",
         ("1", "S_::Rmsnorm2dFwd<S_::Pipe<bf16>>")),
        ('"void f<int>(int) [clone .kd]"', "f", ("int",)),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", ()),
        ("triton_poi_fused_add_cos_sin_0", "triton_poi_fused_add_cos_sin_0", ()),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD", ()),
    ],
)  # fmt: skip
def test_name_and_arguments(name, base, args):
    found = parse(name)
    assert found.base == base
    if args is not None:
        assert found.args == args


@pytest.mark.parametrize(
    "name", ["", "_Z", "_ZN", "_ZN3foo", "_ZZZZ9", "<<<>>>", "operator()", "a<b", "f(", "::", "_ZN1aILi"]
)
def test_names_that_make_no_sense_are_kept(name):
    assert isinstance(parse(name).base, str)


def test_the_short_name_is_the_last_component():
    assert parse(MANGLED).short == "add_rmsnorm_quant_kernel"
