"""From a file to what is known about its records: launches, operators, modules, phases, exclusive time."""

import numpy as np
import pytest

from atrex.traces import importer
from atrex.traces.pipeline import Options
from tests.traces import scene


def analyse(tmp_path, built, name="t.json", options=None, **more):
    path = tmp_path / name
    path.write_bytes(scene.render(built.events, **more))
    return importer.analyse_file(path, options or Options())


def families(analysis):
    order = np.argsort(analysis.trace.device["start"].to_numpy())
    return [analysis.assignments[analysis.assignment[i]].family for i in order]


def phases(analysis):
    order = np.argsort(analysis.trace.device["start"].to_numpy())
    return [analysis.phases.phase[i] for i in order]


def test_every_kernel_finds_operator_module_and_operands(tmp_path):
    analysis = analyse(tmp_path, scene.serving())
    assert set(analysis.joins.link) == {"correlation"}
    first = int(np.argmin(analysis.trace.device["start"].to_numpy()))
    site = analysis.sites[analysis.joins.site[first]]
    assert site.context.ops == ("_C::rms_norm",) and site.context.modules == ("RMSNorm",)
    assert site.dims.replace("\n", "").replace(" ", "") == "[[512,4096],[4096]]"
    assert families(analysis) == ["rms_norm", "gemm", "attention_forward", "silu_and_mul"] * 3


def test_steps_give_the_phase_of_what_they_launch(tmp_path):
    analysis = analyse(tmp_path, scene.serving())
    assert phases(analysis) == ["prefill"] * 4 + ["decode"] * 8
    assert set(analysis.phases.source) == {"stack"}


def test_work_after_a_step_belongs_to_it_and_says_so(tmp_path):
    built = scene.Scene()
    built.step("step[DECODE bs=16]")
    built.call(
        ["aten::argmax"],
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps<float>>>(R)",
        900,
    )
    analysis = analyse(tmp_path, built)
    assert phases(analysis) == ["decode"] * 5
    assert analysis.phases.source[-1] == "previous step"


def test_a_kernel_launched_before_the_window_is_unlinked_and_kept(tmp_path):
    built = scene.Scene()
    built.record("nvjet_tst_early", 5_000, correlation=999)
    built.step("step[DECODE bs=16]")
    analysis = analyse(tmp_path, built)
    assert sorted(analysis.joins.link) == ["correlation"] * 4 + ["none"]
    assert analysis.exclusive.sum() == 5_000 + sum(dur for *_, dur in scene.LAYER)


def test_device_ranges_label_what_has_no_launch(tmp_path):
    built = scene.Scene()
    begin = built.device
    built.record("nvjet_tst_early", 5_000, correlation=999)
    built.add("gpu_user_annotation", "step[EXTEND bs=2 toks=9]", begin, 9_000, 0, 7)
    analysis = analyse(tmp_path, built)
    assert phases(analysis) == ["prefill"] and analysis.phases.source[0] == "device range"


def test_the_file_name_is_asked_after_the_annotations(tmp_path):
    built = scene.Scene()
    built.call(["aten::mm"], "nvjet_tst_x", 5_000)
    analysis = analyse(tmp_path, built, "17-TP-0-DECODE.trace.json")
    assert phases(analysis) == ["decode"] and analysis.phases.source[0] == "file"


@pytest.mark.parametrize(("query", "phase"), [(1, "decode"), (512, "prefill")])
def test_without_annotations_attention_says_the_phase(tmp_path, query, phase):
    built = scene.Scene()
    built.call(["aten::mm"], "nvjet_tst_x", 5_000)
    built.call(["aten::_scaled_dot_product_flash_attention"],
               "void pytorch_flash::flash_fwd_kernel<T<64>>(P)", 9_000, dims=[[4, 16, query, 64]])  # fmt: skip
    analysis = analyse(tmp_path, built)
    assert phases(analysis) == [phase, phase] and set(analysis.phases.source) == {"attention"}


def test_a_phase_that_the_user_gives_holds(tmp_path):
    analysis = analyse(tmp_path, scene.serving(), options=Options(phase="mixed"))
    assert set(analysis.phases.phase) == {"mixed"} and set(analysis.phases.source) == {"given"}


def test_step_counts_are_joined_from_two_ranges_around_a_step(tmp_path):
    built = scene.Scene()
    start = built.host
    built.host += 100
    built.step("step[DECODE bs=16]")
    built.add("user_annotation", "execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8193sqsq16sqsk8193)",
              start, built.host - start)  # fmt: skip
    analysis = analyse(tmp_path, built)
    inner = analysis.steps[int(analysis.phases.step[0])]
    assert inner.generation_kv == 8193 and inner.generation_requests == 16


def test_eager_chains_follow_their_module(tmp_path):
    elementwise = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
    built = scene.Scene()
    for op, functor in (("pow", "pow_tensor_scalar_kernel_impl<float>"), ("mul", "MulFunctor<float>")):
        built.call([f"aten::{op}"], elementwise.format(functor), 1_000, "Qwen3RMSNorm_3")
    built.call(["aten::mul"], elementwise.format("MulFunctor<float>"), 1_000, "Qwen3MLP_3")
    built.call(["aten::mul"], elementwise.format("MulFunctor<float>"), 1_000, "Qwen3Attention_3",
               frame="transformers/models/qwen3/modeling_qwen3.py(147): apply_rotary_pos_emb")  # fmt: skip
    built.call(["aten::add"], elementwise.format("CUDAFunctor_add<c10::BFloat16>"), 1_000, "Qwen3DecoderLayer_3")
    built.call(["aten::add"], elementwise.format("CUDAFunctor_add<c10::BFloat16>"), 1_000)
    analysis = analyse(tmp_path, built)
    assert families(analysis) == ["rms_norm", "rms_norm", "silu_and_mul", "rotary", "residual_add", "elementwise"]


def test_eager_chains_are_found_by_order_where_no_module_is_known(tmp_path):
    elementwise = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
    chain = ["bfloat16_copy_kernel_cuda", "pow_tensor_scalar_kernel_impl<float>", "MeanOps<float>",
             "CUDAFunctorOnSelf_add<float>", "rsqrt_kernel_cuda", "MulFunctor<float>", "bfloat16_copy_kernel_cuda",
             "MulFunctor<c10::BFloat16>"]  # fmt: skip
    built = scene.Scene()
    for functor in chain:
        built.record(elementwise.format(functor), 1_000, correlation=9_000 + built.device % 1000)
    built.record(elementwise.format("MulFunctor<float>"), 1_000, correlation=1)
    analysis = analyse(tmp_path, built)
    assert families(analysis) == ["rms_norm"] * 8 + ["elementwise"]


def test_moe_kernels_of_one_call_share_a_group(tmp_path):
    built = scene.Scene()
    for _ in range(2):
        start = built.host
        built.host += 50
        built.call(["_moe_C::topk_softmax"], "void vllm::moe::topkGating<8, 128>(float)", 1_000)
        built.call(["vllm::fused_experts"], "fused_moe_kernel", 9_000)
        built.add("cpu_op", "vllm::moe_forward", start, built.host - start)
    analysis = analyse(tmp_path, built)
    group = analysis.linked.launches["group"].to_list()
    assert group[0] == group[1] != group[2] == group[3]
    assert families(analysis) == ["moe_topk_gating_softmax", "fused_moe"] * 2


def test_copies_and_sets_stand_beside_kernels(tmp_path):
    built = scene.Scene()
    built.call(
        ["aten::copy_"], "Memcpy DtoD (Device -> Device)", 1_000, cat="gpu_memcpy", api="cudaMemcpyAsync", bytes=64
    )
    built.call(["aten::zero_"], "Memset (Device)", 500, cat="gpu_memset", api="cudaMemsetAsync", bytes=4)
    analysis = analyse(tmp_path, built)
    assert families(analysis) == ["copy", "copy"]
    assert analysis.trace.device.sort("start")["bytes"].to_list() == [64, 4]


@pytest.mark.parametrize(
    ("op", "frame", "framework"),
    [
        ("vllm::all_reduce", None, "vllm"),
        ("aten::mm", "/sgl-workspace/sglang/python/sglang/srt/models/qwen3.py(3): forward", "sglang"),
        ("aten::mm", "transformers/models/qwen3/modeling_qwen3.py(3): forward", "transformers"),
        ("aten::mm", None, None),
    ],
)
def test_the_engine_is_known_by_its_names(tmp_path, op, frame, framework):
    built = scene.Scene()
    built.call([op], "some_kernel", 1_000, frame=frame)
    assert analyse(tmp_path, built).framework == framework


def test_a_step_that_cannot_tell_chunked_prefill_says_so(tmp_path):
    built = scene.Scene()
    built.step("execute_new_0_cached_5")
    analysis = analyse(tmp_path, built)
    assert set(analysis.phases.phase) == {"decode"} and set(analysis.phases.source) == {"uncertain"}


def test_device_ranges_nest(tmp_path):
    built = scene.Scene()
    begin = built.device
    for i in range(3):
        built.record("nvjet_tst_early", 1_000, correlation=900 + i)
    built.add("gpu_user_annotation", "step[EXTEND bs=2 toks=9]", begin, 90_000, 0, 7)
    built.add("gpu_user_annotation", "step[DECODE bs=2]", begin, 900, 0, 7)
    assert phases(analyse(tmp_path, built)) == ["decode", "prefill", "prefill"]


def test_ranks_merged_into_one_file_are_told(tmp_path):
    built = scene.serving()
    other = scene.serving()
    for event in other.events:
        event["pid"] = 999
        event["tid"] = 999
    built.events += other.events
    notes = analyse(tmp_path, built).trace.meta.notes
    assert any("merged of several ranks" in note for note in notes)
