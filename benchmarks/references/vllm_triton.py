"""vLLM's Triton kernels, each module loaded by itself."""

from __future__ import annotations

import enum
import math
from types import ModuleType
from typing import Any

import torch
from benchmarks.references import shim
from benchmarks.references.delta_rule import gated, with_pool
from benchmarks.references.registry import PRODUCTION, Case, Unsupported, check
from benchmarks.references.vllm_ops import aligned, group_quantized, ops, summed

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


@vllm("unified_attention", "unified_attention")
def unified_attention(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.triton_unified_attention").unified_attention
    q, k, v, bounds, used, table = (
        case.inputs[n] for n in ("q", "k_cache", "v_cache", "cu_seqlens_q", "seqused_k", "block_table")
    )
    out = torch.zeros_like(q)
    kernel(
        q=q, k=k, v=v, out=out, cu_seqlens_q=bounds, max_seqlen_q=int(bounds.diff().max()), seqused_k=used,
        max_seqlen_k=int(used.max()), softmax_scale=q.shape[-1] ** -0.5, causal=True, window_size=(-1, -1),
        block_table=table, softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    return out


@vllm("attention_forward", "context_attention_fwd, not causal")
def attention_forward(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.triton_prefill_attention").context_attention_fwd
    q, k, v, bounds = (case.inputs[n] for n in ("q", "k", "v", "cu_seqlens_q"))
    out, lengths = torch.zeros_like(q), bounds.diff()
    kernel(q, k, v, out, bounds[:-1].contiguous(), lengths, int(lengths.max()), is_causal=False)
    return out


@vllm("mla_decode_attention", "decode_attention_fwd")
def mla_decode_attention(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.triton_decode_attention").decode_attention_fwd
    q, cache, lengths = (case.inputs[n] for n in ("q", "kv_cache", "seq_lens"))
    rank, splits = case.init["kv_lora_rank"], 4
    out = q.new_empty(*q.shape[:2], rank)
    lse = q.new_empty(*q.shape[:2])
    logits = torch.empty(*q.shape[:2], splits, rank + 1, dtype=torch.float32, device=q.device)
    pages = rows_of(lengths)
    kernel(
        q,
        cache,
        cache[..., :rank],
        out,
        lse,
        pages,
        lengths,
        logits,
        splits,
        q.shape[-1] ** -0.5,
        page_size=1,
        is_mla=True,
    )
    return out


def rows_of(lengths: torch.Tensor) -> torch.Tensor:
    """[sequences, longest] int32: each token's row, sequences one after the other."""
    ends = lengths.long().cumsum(0)
    place = torch.arange(int(lengths.max()), device=lengths.device)
    return ((ends - lengths)[:, None] + place).clamp(max=int(ends[-1]) - 1).int()


@vllm("paged_attention_decode", "chunked_prefill_paged_decode")
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


@vllm("topk_filter", "apply_top_k_top_p_triton")
def topk_filter(case: Case) -> torch.Tensor:
    logits = case.inputs["logits"]
    k = torch.full(
        (len(logits),), min(case.init.get("top_k", 50), logits.shape[1]), dtype=torch.int32, device=logits.device
    )
    return load("vllm.v1.sample.ops.topk_topp_triton").apply_top_k_top_p_triton(logits, k, None)


@vllm("mrope", "triton_mrope")
def mrope(case: Case) -> dict[str, torch.Tensor]:
    if not case.init["is_neox_style"]:
        raise Unsupported("neox style only")
    kernel = load(f"{LAYERS}.rotary_embedding.mrope").triton_mrope
    q, k, cos, sin = (case.inputs[n] for n in ("q", "k", "cos", "sin"))
    size, rotated = case.init["head_size"], case.init["rotary_dim"]
    q, k = kernel(q, k, cos, sin, case.init["mrope_section"], size, rotated, case.init["mrope_interleaved"])
    return {"q": q, "k": k}


@vllm("l2_norm", "l2norm_fwd")
def l2_norm(case: Case) -> torch.Tensor:
    return load(f"{LAYERS}.fla.ops.l2norm").l2norm_fwd(case.inputs["x"], eps=1e-6)


@vllm("gated_rms_norm", "layer_norm_fwd")
def gated_rms_norm(case: Case) -> torch.Tensor:
    kernel = load(f"{LAYERS}.fla.ops.layernorm_guard").layer_norm_fwd
    x, weight, z = (case.inputs[n] for n in ("x", "weight", "z"))
    return kernel(
        x, weight, None, case.init["eps"], z=z, norm_before_gate=case.init["norm_before_gate"], is_rms_norm=True
    )[0]


@vllm("chunk_delta_rule_output", "chunk_fwd_o")
def chunk_delta_rule_output(case: Case) -> torch.Tensor:
    kernel = load(f"{LAYERS}.fla.ops.chunk_o").chunk_fwd_o
    q, k, v, h, g = (case.inputs[n] for n in ("q", "k", "v", "h", "g"))
    h = h.transpose(-1, -2).contiguous()
    return kernel(q=q, k=k, v=v, h=h, g=g, scale=q.shape[-1] ** -0.5)


@vllm("chunk_gated_delta_rule_state", "chunk_gated_delta_rule_fwd_h", note="a row of the pool by sequence")
def chunk_gated_delta_rule_state(case: Case) -> dict[str, torch.Tensor]:
    kernel = load(f"{LAYERS}.fla.ops.chunk_delta_h").chunk_gated_delta_rule_fwd_h
    k, w, u, g, pool = (case.inputs[n] for n in ("k", "w", "u", "g", "initial_state"))
    rows = case.inputs["initial_state_indices"].long()
    state = pool[rows].transpose(-1, -2).contiguous()
    h, new, after = kernel(k=k, w=w, u=u, g=g, initial_state=state, output_final_state=True)
    pool = pool.index_copy(0, rows, after.transpose(-1, -2).contiguous())
    return {"h": h.transpose(-1, -2).contiguous(), "v_new": new, "initial_state": pool}


@vllm(
    "gated_delta_rule_update",
    "fused_sigmoid_gating_delta_rule_update",
    note="a row of its own by sequence, row 0 means none",
)
def gated_delta_rule_update(case: Case) -> dict[str, torch.Tensor]:
    kernel = load(f"{LAYERS}.fla.ops.fused_sigmoid_gating").fused_sigmoid_gating_delta_rule_update
    given, start = case.inputs, gated(case).state.transpose(-1, -2)
    sequences, tokens = given["v"].shape[:2]
    states = torch.cat([torch.zeros_like(start[:1]), start]).contiguous()
    device = states.device
    rows = torch.arange(1, sequences + 1, dtype=torch.int32, device=device)[:, None].repeat(1, tokens)
    bounds = tokens * torch.arange(sequences + 1, dtype=torch.int32, device=device)
    a, b, q, k, v = (given[n].flatten(0, 1)[None].contiguous() for n in ("a", "b", "q", "k", "v"))
    out, states = kernel(
        given["A_log"], a, b, given["dt_bias"], q, k, v, case.init["softplus_beta"], case.init["softplus_threshold"],
        initial_state=states, cu_seqlens=bounds, ssm_state_indices=rows,
        use_qk_l2norm_in_kernel=case.init["use_qk_l2norm"],
    )  # fmt: skip
    return with_pool(case, out.view(given["v"].shape), states[1:].transpose(-1, -2))


@vllm("causal_conv1d", "causal_conv1d_fn")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    kernel = load(f"{LAYERS}.mamba.ops.causal_conv1d").causal_conv1d_fn
    x, weight, bias, state = (case.inputs[n] for n in ("x", "weight", "bias", "initial_state"))
    device = x.device
    # Row 0 of its states means none; channels lie together there.
    states = torch.zeros(2, state.shape[2], state.shape[1], dtype=state.dtype, device=device).transpose(1, 2)
    states[1] = state[0]
    bounds = torch.tensor([0, x.shape[1]], dtype=torch.int32, device=device)
    row, has = torch.ones(1, dtype=torch.int32, device=device), torch.ones(1, dtype=torch.bool, device=device)
    out = kernel(x.t().contiguous().t(), weight, bias, states, bounds, row, has, activation=case.init["activation"])
    return {"out": out.contiguous(), "initial_state": states[1:].contiguous()}


@vllm("block_scaled_mm", "w8a8_triton_block_scaled_mm")
def block_scaled_mm(case: Case) -> torch.Tensor:
    module = load(f"{LAYERS}.quantization.utils.fp8_utils")
    a, b, a_scales, b_scales = (case.inputs[n] for n in ("a", "b", "a_scales", "b_scales"))
    module.get_w8a8_block_fp8_configs = lambda *_: None  # its own default, not one tuned for a device
    block = [case.init["group_n"], case.init["group_k"]]
    return module.w8a8_triton_block_scaled_mm(a, b, a_scales, b_scales, block, output_dtype=torch.float32)


BLOCK = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}


def grouped(case: Case, x: torch.Tensor, weight: torch.Tensor, weighted: bool, quant: dict[str, Any]) -> torch.Tensor:
    """[rows, k] through each slot's expert [experts, n, k] -> [tokens, top_k, n] bf16; `weighted` by the router."""
    import triton.language as tl

    module, ids = load(f"{LAYERS}.fused_moe.fused_moe"), case.inputs["topk_ids"]
    top_k = ids.shape[1]
    block = BLOCK | ({"BLOCK_SIZE_K": 128} if quant else {})
    order, owners, used = aligned(ids, case.init["num_experts"], block["BLOCK_SIZE_M"])
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
    return summed(grouped(case, between, case.inputs["w2"], True, {})).float()


@vllm(
    "fp8_blockscale_fused_moe",
    "invoke_fused_moe_triton_kernel, silu_and_mul, per_token_group_fp8_quant, moe_sum",
    note="quantizes between the products",
)
def fp8_blockscale_fused_moe(case: Case) -> torch.Tensor:
    given = case.inputs
    first = {"a": given["a_scale"], "b": given["fc1_scale"], "block": [128, 128]}
    between = activated(grouped(case, given["hidden_states"], given["w1"], False, first))
    codes, scales = group_quantized(between, 128)
    second = {"a": scales, "b": given["fc2_scale"], "block": [128, 128]}
    return summed(grouped(case, codes, given["w2"], True, second))
