import pytest

from atrex.dsls.attribution import classify

NAMES = {
    "torch": [
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<...>>",
        "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIfffN4..EEEEvT1_",
        "_ZN2at4cuda17kernelHistogram1DIflLi1ELi2ELin1E",
        "_ZN14at_cuda_detail3cub17DeviceRadixSortXXEE",
        "void (anonymous namespace)::at::native::softmax_warp_forward<float>",
        "_ZN50_GLOBAL__N__c1e2_12_LegacyThrust_cu_1a2b17kernel",
    ],
    "vendor": [
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn",
        "ampere_sgemm_128x64_tn",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8",
        "_ZN7cutlass7Kernel2I66cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8EEvNT_6ParamsE",
        "void cutlass::device_kernel<...>",
        "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EifffLb1E",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traits",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        "_ZN8internal5gemvx6kernelIii13__nv_bfloat16",
        "gemv2T_kernel_val",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x128x64",
    ],
    "copy": ["[CUDA memcpy HtoD]", "Memcpy DtoD (Device -> Device)", "Memset (Device)", "memcpy", "MEMSET"],
    "dsl": ["triton_poi_fused_add_mul_0", "triton_red_fused__to_copy_mean_pow_rsqrt_1", "triton_tem_fused_mm_2"],
    "unknown": ["my_kernel", "_Z9my_kernelPf", ""],
}


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in NAMES.items() for name in names])
def test_kernel_names_tell_their_owner(owner, name):
    assert classify(name) == owner


def test_a_kernel_seen_compiled_from_the_candidate_is_the_target_s():
    assert classify("flash_fwd_kernel", target={"flash_fwd_kernel"}) == "target"


def test_a_name_that_a_library_shares_is_not_the_target_s():
    assert classify("rms_kernel", target={"rms_kernel"}, dsl={"rms_kernel"}) == "dsl"


def test_a_candidate_cannot_claim_a_vendor_kernel_by_its_name():
    assert classify("nvjet_hsh_128x256", target={"nvjet_hsh_128x256"}) == "vendor"
