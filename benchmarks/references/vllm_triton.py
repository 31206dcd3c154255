"""vLLM's kernels as its baseline calls them, and further Triton kernels, each module loaded by itself."""

from __future__ import annotations

import enum
import math
from types import ModuleType
from typing import Any

import torch
from benchmarks.references import shim
from benchmarks.references.baseline_checks import from_baseline
from benchmarks.references.registry import PRODUCTION, Case, Unsupported, check
from benchmarks.references.vllm_ops import ops

from atrex.baselines import get
from atrex.baselines.vllm import CausalConv1d, MoeAlignBlockSize, MoeSumReduce, PerTokenGroupQuantFp8

ATTENTION, LAYERS = "vllm.v1.attention.ops", "vllm.model_executor.layers"
REAL = (
    *(
        f"{ATTENTION}.{name}"
        for name in ("triton_unified_attention", "triton_prefill_attention", "triton_decode_attention")
    ),
    f"{ATTENTION}.triton_attention_helpers",
    f"{ATTENTION}.triton_reshape_and_cache_flash",
    f"{ATTENTION}.chunked_prefill_paged_decode",
    f"{ATTENTION}.prefix_prefill",
    "vllm.v1.sample.ops.topk_topp_triton",
    f"{LAYERS}.rotary_embedding.mrope",
    *(f"{LAYERS}.fla.ops.{name}" for name in ("chunk_delta_h", "chunk_o", "l2norm", "layernorm_guard", "cumsum")),
    *(f"{LAYERS}.fla.ops.{name}" for name in ("fused_sigmoid_gating", "fused_recurrent", "utils", "op", "index")),
    f"{LAYERS}.mamba.ops.causal_conv1d",
    f"{LAYERS}.quantization.utils.fp8_utils",
    f"{LAYERS}.fused_moe.fused_moe",
    "vllm.utils.math_utils",
)
GPU = ("cuda",)
SAME_LENGTHS = dict.fromkeys(("more_keys", "fewer_keys"), "it takes as many keys as queries")
FLOOR = "its smallest scale is 1 / (512 * 448), the operator's 1e-12 / 448"
ZERO_WEIGHT = "it multiplies what stands past a context by a weight of zero, and NaN stays NaN"
PRODUCTS = "it rounds the product of each tap to bf16 before it adds, which shows where the taps nearly cancel"


class KVQuantMode(enum.IntEnum):
    """How a cache is quantized: not at all, here."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    NVFP4 = 4


class Platform:
    """What vLLM's kernels ask about the machine."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *_: name in ("is_cuda", "is_cuda_alike")
        raise AttributeError(name)

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return torch.cuda.get_device_capability()

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn

    def has_device_capability(self, wanted: int) -> bool:
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor >= wanted

    def get_device_name(self, *_: Any) -> str:
        return torch.cuda.get_device_name()


def quantized_cache(kind: str) -> bool:
    return kind.startswith("fp8")


def facts() -> dict[str, dict[str, Any]]:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    platform = Platform()
    return {
        "vllm.logger": {"init_logger": shim.log},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.platforms": {"current_platform": platform},
        "vllm.platforms.rocm": {"use_rocm_custom_paged_attention": lambda *_, **__: False},
        "vllm.triton_utils": {"triton": triton, "tl": tl, "tldevice": libdevice, "LOG2E": math.log2(math.e)},
        "vllm.utils.platform_utils": {"num_compute_units": lambda *_: shim.processors()},
        "vllm.utils.torch_utils": {
            "direct_register_custom_op": shim.custom_op,
            "is_quantized_kv_cache": quantized_cache,
        },
        f"{LAYERS}.quantization.utils.quant_utils": {"get_fp8_min_max": lambda: (-448.0, 448.0)},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
        "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0, "PAD_SLOT_ID": -1},
    }


def load(name: str) -> ModuleType:
    """A kernel module of vLLM by its full name."""
    return shim.modules("vllm", REAL, facts())(name)


def vllm(operator: str, name: str, **kwargs):
    return check(operator, f"vLLM {name} (Triton)", "vllm", PRODUCTION, devices=GPU, **kwargs)


def prepare(operator: str) -> None:
    """Make what the baseline calls loadable without the rest of vLLM."""
    load("vllm")
    if get("vllm").functions[operator].calls.startswith("_"):
        ops()
    if operator == "block_scaled_mm":  # its own default, not one tuned for a device
        load(f"{LAYERS}.quantization.utils.fp8_utils").get_w8a8_block_fp8_configs = lambda *_: None


BASELINE = get("vllm")
from_baseline(
    BASELINE, PRODUCTION, "vLLM ",
    [name for name in BASELINE.functions if name not in ("fused_moe", "attention_forward")],  # these need all of vLLM
    prepare, {"fp8_dynamic_per_token_quant": {"tiny": FLOOR}, "fused_rmsnorm_quant": {"small_rows": FLOOR}},
    coarser={"causal_conv1d": PRODUCTS}, adapters={"fused_rmsnorm_quant": 2},
)  # fmt: skip


@vllm("attention_forward", "context_attention_fwd, not causal", differs=SAME_LENGTHS)
def attention_forward(case: Case) -> torch.Tensor:
    if "key_lens" in case.kwargs:
        raise Unsupported("as many keys as queries only")
    kernel = load(f"{ATTENTION}.triton_prefill_attention").context_attention_fwd
    q, k, v, bounds = (case.inputs[n] for n in ("q", "k", "v", "cu_seqlens_q"))
    out, lengths = torch.zeros_like(q), bounds.diff()
    kernel(q, k, v, out, bounds[:-1].contiguous(), lengths, int(lengths.max()), is_causal=False)
    return out


@vllm("causal_conv1d", "causal_conv1d_fn in float32", note="operands widened, so that its products are exact enough")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    prepare("causal_conv1d")
    dtype, wide = case.inputs["x"].dtype, {name: t.float() for name, t in case.inputs.items()}
    out = CausalConv1d(case.init["activation"])(**wide)
    return {"out": out.to(dtype), "initial_state": wide["initial_state"].to(dtype)}


@vllm("paged_attention_decode", "chunked_prefill_paged_decode", differs={"nan_outside": ZERO_WEIGHT})
def paged_attention_decode(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.chunked_prefill_paged_decode").chunked_prefill_paged_decode
    query, k, v, table, lengths = (case.inputs[n] for n in ("query", "k_cache", "v_cache", "block_tables", "seq_lens"))
    sequences, heads, size = query.shape
    out = torch.zeros_like(query)
    scale = torch.ones((), device=query.device)
    bounds = torch.arange(sequences + 1, dtype=torch.int32, device=query.device)
    new = torch.zeros(sequences, k.shape[1], size, dtype=query.dtype, device=query.device)
    kernel(
        query,
        new,
        new,
        out,
        "auto",
        k,
        v,
        table,
        bounds,
        lengths,
        int(lengths.max()),
        1,
        scale,
        scale,
        sm_scale=size**-0.5,
    )
    return out


@vllm("reshape_and_cache", "triton_reshape_and_cache_flash")
def reshape_and_cache(case: Case) -> dict[str, torch.Tensor]:
    module = load(f"{ATTENTION}.triton_reshape_and_cache_flash")
    key, value, k_cache, v_cache, slots = (
        case.inputs[n] for n in ("key", "value", "key_cache", "value_cache", "slot_mapping")
    )
    scale = torch.ones((), device=key.device)
    module.triton_reshape_and_cache_flash(key, value, k_cache, v_cache, slots, "auto", scale, scale)
    return {"key_cache": k_cache, "value_cache": v_cache}


BLOCK = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}


def grouped(case: Case, x: torch.Tensor, weight: torch.Tensor, weighted: bool, quant: dict[str, Any]) -> torch.Tensor:
    """[rows, k] through each slot's expert [experts, n, k] -> [tokens, top_k, n] bf16; `weighted` by the router."""
    import triton.language as tl

    module, ids = load(f"{LAYERS}.fused_moe.fused_moe"), case.inputs["topk_ids"]
    top_k = ids.shape[1]
    block = BLOCK | ({"BLOCK_SIZE_K": 128} if quant else {})
    ops()
    order, owners, used = MoeAlignBlockSize(block["BLOCK_SIZE_M"], case.init["num_experts"])(ids).values()
    out = torch.zeros(*ids.shape, weight.shape[1], dtype=torch.bfloat16, device=x.device)
    module.invoke_fused_moe_triton_kernel(
        x, weight, out, quant.get("a"), quant.get("b"), case.inputs["topk_weights"], order, owners, used, weighted,
        1 if weighted else top_k, block, tl.bfloat16, bool(quant), False, False, False, False, quant.get("block"),
    )  # fmt: skip
    return out


def activated(x: torch.Tensor) -> torch.Tensor:
    """[tokens, k, 2 n] -> [tokens * k, n]: gated by silu."""
    out = x.new_empty(x.shape[0] * x.shape[1], x.shape[2] // 2)
    ops().general.silu_and_mul(out, x.view(len(out), -1))
    return out


@vllm("fused_moe", "invoke_fused_moe_triton_kernel, silu_and_mul, moe_sum", note="its bf16 result widened")
def fused_moe(case: Case) -> torch.Tensor:
    between = activated(grouped(case, case.inputs["hidden_states"], case.inputs["w1"], False, {}))
    return MoeSumReduce(1.0)(grouped(case, between, case.inputs["w2"], True, {})).float()


@vllm(
    "fp8_blockscale_fused_moe",
    "invoke_fused_moe_triton_kernel, silu_and_mul, per_token_group_fp8_quant, moe_sum",
    note="quantizes between the products",
)
def fp8_blockscale_fused_moe(case: Case) -> torch.Tensor:
    given = case.inputs
    first = {"a": given["a_scale"], "b": given["fc1_scale"], "block": [128, 128]}
    between = activated(grouped(case, given["hidden_states"], given["w1"], False, first))
    codes, scales = PerTokenGroupQuantFp8(128)(between).values()
    second = {"a": scales, "b": given["fc2_scale"], "block": [128, 128]}
    return MoeSumReduce(1.0)(grouped(case, codes, given["w2"], True, second))
