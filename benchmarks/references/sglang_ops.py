"""SGLang's compiled operators for Hopper that its baseline does not call, called as its own Python calls them."""

from __future__ import annotations

from functools import cache

import torch
from benchmarks.references import shim
from benchmarks.references.registry import PRODUCTION, Case, NotInstalled, check


def sgl(operator: str, name: str, **kwargs):
    return check(operator, f"sgl-kernel {name}", "sglang-kernel", PRODUCTION, devices=("cuda",), **kwargs)


@cache
def ops():
    """torch.ops of SGLang's kernel library."""
    if torch.cuda.get_device_capability()[0] != 9:
        raise NotInstalled("sgl-kernel's library for Hopper needs a Hopper device")
    shim.library("sgl_kernel", "sm90", "common_ops.abi3.so")
    return torch.ops.sgl_kernel


@sgl("fused_qkv_rope", "rotary_embedding", note="in float32, after torch's addition of the bias")
def fused_qkv_rope(case: Case) -> dict[str, torch.Tensor]:
    size, rotated = case.init["head_dim"], case.init["rope_dim"]
    qkv, positions = case.inputs["qkv"], case.inputs["positions"].long()
    wide = qkv.float()
    if "qkv_bias" in case.inputs:
        wide = wide + case.inputs["qkv_bias"].float()
    sizes = [case.init[n] * size for n in ("num_heads", "num_kv_heads", "num_kv_heads")]
    q, k, v = (part.contiguous() for part in wide.split(sizes, dim=1))
    exponent = torch.arange(0, rotated, 2, dtype=torch.float32, device=qkv.device) / rotated
    angle = torch.arange(int(positions.max()) + 1, device=qkv.device).float()[:, None] / 10000.0**exponent
    ops().rotary_embedding(positions, q, k, size, torch.cat([angle.cos(), angle.sin()], dim=1), True)
    return {n: t.view(len(t), -1, size).to(qkv.dtype) for n, t in zip("qkv", (q, k, v), strict=True)}


@sgl("moe_count_and_sort", "prepare_moe_input", note="gives tokens, not slots: the slot is the one that it maps there")
def moe_count_and_sort(case: Case) -> dict[str, torch.Tensor]:
    ids, experts = case.inputs["topk_ids"], case.init.get("num_experts", 128)
    device, slots = ids.device, ids.numel()
    offsets = torch.empty(experts + 1, dtype=torch.int32, device=device)
    problems = [torch.empty(experts, 3, dtype=torch.int32, device=device) for _ in range(2)]
    tokens, places = (torch.empty(slots, dtype=torch.int32, device=device) for _ in range(2))
    ops().prepare_moe_input(ids, offsets, None, *problems, tokens, places, experts, 128, 128)
    # places[slot] is where the slot goes: its inverse is the order of the slots.
    order = torch.full((slots,), -1, dtype=torch.int32, device=device)
    order[places.long()] = torch.arange(slots, dtype=torch.int32, device=device)
    if not torch.equal(tokens.long(), order.long() // ids.shape[1]):
        raise AssertionError("prepare_moe_input's two permutations disagree")
    return {"sorted_token_ids": order, "expert_token_counts": problems[0][:, 0].contiguous(), "cumsum": offsets}
