"""vLLM's compiled operators that its baseline does not call, called as its own Python calls them."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
from benchmarks.references import shim
from benchmarks.references.registry import PRODUCTION, Case, check


def vllm(operator: str, name: str, **kwargs):
    return check(operator, f"vLLM {name}", "vllm", PRODUCTION, devices=("cuda",), **kwargs)


@cache
def ops() -> SimpleNamespace:
    """torch.ops of vLLM's libraries: general operators, those of caches and of experts."""
    for name in ("_C.abi3.so", "_C_stable_libtorch.abi3.so", "_moe_C.abi3.so"):
        shim.library("vllm", name)
    return SimpleNamespace(general=torch.ops._C, cache=torch.ops._C_cache_ops, moe=torch.ops._moe_C)


@vllm("fused_qk_rmsnorm", "fused_qk_norm_rope", note="with a rotation by nothing")
def fused_qk_rmsnorm(case: Case) -> torch.Tensor:
    q, kv, size = (case.init[n] for n in ("head_num", "kv_head_num", "size_per_head"))
    x, (q_weight, k_weight) = case.inputs["hidden_states"], (case.inputs[n] for n in ("q_weight", "k_weight"))
    table = torch.cat([torch.ones(1, size // 2), torch.zeros(1, size // 2)], 1).to(x)
    positions = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    eps = case.init.get("eps", 1e-6)
    ops().general.fused_qk_norm_rope(x, q, kv, kv, size, eps, q_weight, k_weight, table, True, positions)
    return x


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
    ops().moe.moe_permute(hidden, ids, slots, None, experts, experts, k, permuted, offsets, inverse, order)
    return {
        "sorted_token_ids": order,
        "expert_token_counts": offsets.diff().int(),
        "cumsum": offsets.int(),
    }
