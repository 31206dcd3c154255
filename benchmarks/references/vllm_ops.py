"""vLLM's compiled operators, called as its own Python calls them."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
from benchmarks.references import shim
from benchmarks.references.registry import PRODUCTION, Case, Unsupported, check

FP8 = torch.float8_e4m3fn
FLOOR = "its smallest scale is 1 / (512 * 448), the operator's 1e-12 / 448"


def vllm(operator: str, name: str, **kwargs):
    return check(operator, f"vLLM {name}", "vllm", PRODUCTION, devices=("cuda",), **kwargs)


@cache
def ops() -> SimpleNamespace:
    """torch.ops of vLLM's main library: general operators and those of caches."""
    shim.library("vllm", "_C.abi3.so")
    return SimpleNamespace(general=torch.ops._C, cache=torch.ops._C_cache_ops)


@cache
def stable():
    """torch.ops of the part built on torch's stable interface."""
    shim.library("vllm", "_C_stable_libtorch.abi3.so")
    return torch.ops._C


@cache
def moe():
    """torch.ops of the mixture-of-experts library."""
    shim.library("vllm", "_moe_C.abi3.so")
    return torch.ops._moe_C


def one(case: Case) -> torch.Tensor:
    return torch.ones((), dtype=torch.float32, device=case.device)


@vllm("rms_norm", "rms_norm")
def rms_norm(case: Case) -> torch.Tensor:
    out = torch.empty_like(case.inputs["x"])
    ops().general.rms_norm(out, case.inputs["x"], case.inputs["weight"], case.init["eps"])
    return out


@vllm("fused_add_rms_norm", "fused_add_rms_norm")
def fused_add_rms_norm(case: Case) -> dict[str, torch.Tensor]:
    x, residual, weight = (case.inputs[n] for n in ("x", "residual", "weight"))
    ops().general.fused_add_rms_norm(x, residual, weight, case.init["eps"])
    return {"out": x, "residual": residual}


@vllm("fused_qk_rmsnorm", "fused_qk_norm_rope", note="with a rotation by nothing")
def fused_qk_rmsnorm(case: Case) -> torch.Tensor:
    q, kv, size = (case.init[n] for n in ("head_num", "kv_head_num", "size_per_head"))
    x, (q_weight, k_weight) = case.inputs["hidden_states"], (case.inputs[n] for n in ("q_weight", "k_weight"))
    table = torch.cat([torch.ones(1, size // 2), torch.zeros(1, size // 2)], 1).to(x)
    positions = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    eps = case.init.get("eps", 1e-6)
    ops().general.fused_qk_norm_rope(x, q, kv, kv, size, eps, q_weight, k_weight, table, True, positions)
    return x


@vllm("fused_qk_rmsnorm", "rms_norm by head")
def fused_qk_rmsnorm_by_head(case: Case) -> torch.Tensor:
    size, eps = case.init["size_per_head"], case.init.get("eps", 1e-6)
    sizes = [case.init[n] * size for n in ("head_num", "kv_head_num", "kv_head_num")]
    parts = list(case.inputs["hidden_states"].split(sizes, dim=1))
    for i, weight in enumerate(("q_weight", "k_weight")):
        heads = parts[i].reshape(-1, size)
        parts[i] = torch.empty_like(heads)
        ops().general.rms_norm(parts[i], heads, case.inputs[weight], eps)
        parts[i] = parts[i].view(len(case.inputs["hidden_states"]), -1)
    return torch.cat(parts, dim=1)


@vllm("silu_and_mul", "silu_and_mul")
def silu_and_mul(case: Case) -> torch.Tensor:
    x = case.inputs["x"]
    out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    ops().general.silu_and_mul(out, x)
    return out


@vllm("fused_qkv_rope", "rotary_embedding", note="in float32, after torch's addition of the bias")
def fused_qkv_rope(case: Case) -> dict[str, torch.Tensor]:
    size, rotated = case.init["head_dim"], case.init["rope_dim"]
    sizes = [case.init[n] * size for n in ("num_heads", "num_kv_heads", "num_kv_heads")]
    qkv, positions = case.inputs["qkv"], case.inputs["positions"].long()
    wide = qkv.float()
    if "qkv_bias" in case.inputs:
        wide = wide + case.inputs["qkv_bias"].float()
    q, k, v = (part.contiguous() for part in wide.split(sizes, dim=1))
    # A table in the operands' 16 bits, as vLLM has it by default, would round every cosine.
    exponent = torch.arange(0, rotated, 2, dtype=torch.float32, device=qkv.device) / rotated
    angle = torch.arange(int(positions.max()) + 1, device=qkv.device).float()[:, None] / 10000.0**exponent
    table = torch.cat([angle.cos(), angle.sin()], dim=1)
    ops().general.rotary_embedding(positions, q, k, size, table, True)
    return {n: t.view(len(t), -1, size).to(qkv.dtype) for n, t in zip("qkv", (q, k, v), strict=True)}


@vllm("fp8_dynamic_per_token_quant", "dynamic_per_token_scaled_fp8_quant", differs={"tiny": FLOOR})
def fp8_dynamic_per_token_quant(case: Case) -> dict[str, torch.Tensor]:
    x = case.inputs["x"]
    q, scale = torch.empty_like(x, dtype=FP8), torch.empty(len(x), 1, device=x.device)
    ops().general.dynamic_per_token_scaled_fp8_quant(q, x, scale, None)
    return {"q": q, "scale": scale.view(-1)}


@vllm("fused_rmsnorm_quant", "rms_norm_dynamic_per_token_quant", differs={"small_rows": FLOOR})
def fused_rmsnorm_quant(case: Case) -> dict[str, torch.Tensor]:
    x, residual, weight = (case.inputs[n] for n in ("x", "residual", "weight"))
    q, scale = torch.empty_like(x, dtype=FP8), torch.empty(len(x), 1, device=x.device)
    eps = case.init.get("eps", 1e-6)
    ops().general.rms_norm_dynamic_per_token_quant(q, x, weight, scale, eps, None, residual)
    return {"quantized": q, "scale": scale, "residual_out": residual}


@vllm("per_token_group_quant_fp8", "per_token_group_fp8_quant")
def per_token_group_quant_fp8(case: Case) -> dict[str, torch.Tensor]:
    q, scales = group_quantized(case.inputs["x"], case.init["group_size"])
    return {"quantized": q, "scales": scales}


def group_quantized(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, cols] -> fp8 codes, scales [rows, cols / group] fp32."""
    q, scales = torch.empty_like(x, dtype=FP8), torch.empty(len(x), x.shape[1] // group, device=x.device)
    largest = torch.finfo(FP8).max
    stable().per_token_group_fp8_quant(x, q, scales, group, 1e-10, -largest, largest, False, False, False)
    return q, scales


@vllm("paged_attention_decode", "paged_attention_v1")
def paged_attention_decode(case: Case) -> torch.Tensor:
    query, k, v, table, lengths = (case.inputs[n] for n in ("query", "k_cache", "v_cache", "block_tables", "seq_lens"))
    out = torch.empty_like(query)
    ops().general.paged_attention_v1(
        out, query, k, v, k.shape[1], query.shape[-1] ** -0.5, table, lengths, k.shape[3], int(lengths.max()), None,
        "auto", one(case), one(case), 0, 0, 0, 64, 0,
    )  # fmt: skip
    return out


@vllm("reshape_and_cache", "reshape_and_cache_flash")
def reshape_and_cache(case: Case) -> dict[str, torch.Tensor]:
    key, value, k_cache, v_cache, slots = (
        case.inputs[n] for n in ("key", "value", "key_cache", "value_cache", "slot_mapping")
    )
    ops().cache.reshape_and_cache_flash(key, value, k_cache, v_cache, slots, "auto", one(case), one(case))
    return {"key_cache": k_cache, "value_cache": v_cache}


@vllm("moe_topk_gating_softmax", "topk_softmax")
def moe_topk_gating_softmax(case: Case) -> dict[str, torch.Tensor]:
    logits, k = case.inputs["gating_output"], case.init["top_k"]
    weights = torch.empty(len(logits), k, device=logits.device)
    ids, rows = (torch.empty(len(logits), k, dtype=torch.int32, device=logits.device) for _ in range(2))
    moe().topk_softmax(weights, ids, rows, logits, False, None)
    return {"topk_weights": weights, "topk_ids": ids}


@vllm("moe_align_block_size", "moe_align_block_size")
def moe_align_block_size(case: Case) -> dict[str, torch.Tensor]:
    ids, blocks, used = aligned(case.inputs["topk_ids"], case.init["num_experts"], case.init["block_size"])
    return {"sorted_token_ids": ids, "expert_ids": blocks, "num_tokens_post_pad": used}


def aligned(topk_ids: torch.Tensor, experts: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slots by expert in whole blocks, each block's expert, and how many entries are in use."""
    blocks = -(-(topk_ids.numel() + experts * (block - 1)) // block)
    sizes = (blocks * block, blocks, 1)
    ids, owners, used = (torch.empty(n, dtype=torch.int32, device=topk_ids.device) for n in sizes)
    moe().moe_align_block_size(topk_ids, experts, block, ids, owners, used, None)
    return ids, owners, used


@vllm("moe_sum_reduce", "moe_sum")
def moe_sum_reduce(case: Case) -> torch.Tensor:
    if case.init["routed_scaling_factor"] != 1.0:
        raise Unsupported("has no scaling factor")
    return summed(case.inputs["expert_outputs"])


def summed(x: torch.Tensor) -> torch.Tensor:
    """[tokens, k, hidden] -> [tokens, hidden]"""
    out = x.new_empty(x.shape[0], x.shape[2])
    moe().moe_sum(x, out)
    return out


@vllm("moe_count_and_sort", "moe_permute", note="counts are differences of its offsets")
def moe_count_and_sort(case: Case) -> dict[str, torch.Tensor]:
    ids, experts = case.inputs["topk_ids"], case.init.get("num_experts", 128)
    tokens, k = ids.shape
    device = ids.device
    hidden = torch.zeros(tokens, 128, dtype=torch.bfloat16, device=device)
    slots = torch.arange(tokens * k, dtype=torch.int32, device=device).view(tokens, k)
    permuted = torch.empty(tokens * k, 128, dtype=torch.bfloat16, device=device)
    offsets = torch.empty(experts + 1, dtype=torch.int64, device=device)
    inverse = torch.empty(tokens, k, dtype=torch.int32, device=device)
    order = torch.full((tokens * k,), -1, dtype=torch.int32, device=device)
    moe().moe_permute(hidden, ids, slots, None, experts, experts, k, permuted, offsets, inverse, order)
    return {
        "sorted_token_ids": order,
        "expert_token_counts": offsets.diff().int(),
        "cumsum": offsets.int(),
    }
