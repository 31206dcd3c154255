"""SGLang's compiled operators for Hopper, called as its own Python calls them."""

from __future__ import annotations

from functools import cache

import torch
from benchmarks.references import shim
from benchmarks.references.registry import PRODUCTION, Case, NotInstalled, Unsupported, check

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max


def sgl(operator: str, name: str, **kwargs):
    return check(operator, f"sgl-kernel {name}", "sglang-kernel", PRODUCTION, devices=("cuda",), **kwargs)


@cache
def ops():
    """torch.ops of SGLang's kernel library."""
    if torch.cuda.get_device_capability()[0] != 9:
        raise NotInstalled("sgl-kernel's library for Hopper needs a Hopper device")
    shim.library("sgl_kernel", "sm90", "common_ops.abi3.so")
    return torch.ops.sgl_kernel


@sgl("rms_norm", "rmsnorm")
def rms_norm(case: Case) -> torch.Tensor:
    out = torch.empty_like(case.inputs["x"])
    ops().rmsnorm(out, case.inputs["x"], case.inputs["weight"], case.init["eps"], False)
    return out


@sgl("fused_add_rms_norm", "fused_add_rmsnorm")
def fused_add_rms_norm(case: Case) -> dict[str, torch.Tensor]:
    x, residual, weight = (case.inputs[n] for n in ("x", "residual", "weight"))
    ops().fused_add_rmsnorm(x, residual, weight, case.init["eps"], False)
    return {"out": x, "residual": residual}


@sgl("fused_qk_rmsnorm", "rmsnorm by head")
def fused_qk_rmsnorm(case: Case) -> torch.Tensor:
    size, eps, whole = case.init["size_per_head"], case.init.get("eps", 1e-6), case.inputs["hidden_states"]
    parts = list(whole.split([case.init[n] * size for n in ("head_num", "kv_head_num", "kv_head_num")], dim=1))
    for i, weight in enumerate(("q_weight", "k_weight")):
        heads = parts[i].reshape(-1, size)
        out = torch.empty_like(heads)
        ops().rmsnorm(out, heads, case.inputs[weight], eps, False)
        parts[i] = out.view(len(whole), -1)
    return torch.cat(parts, dim=1)


@sgl("silu_and_mul", "silu_and_mul")
def silu_and_mul(case: Case) -> torch.Tensor:
    x = case.inputs["x"]
    out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    ops().silu_and_mul(out, x)
    return out


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


@sgl("block_scaled_mm", "fp8_blockwise_scaled_mm", note="its bf16 result widened")
def block_scaled_mm(case: Case) -> torch.Tensor:
    a, b, a_scales, b_scales = (case.inputs[n] for n in ("a", "b", "a_scales", "b_scales"))
    left = a_scales.t().contiguous().t()  # scales of the rows lie together
    return ops().fp8_blockwise_scaled_mm(a, b.t(), left, b_scales.t(), torch.bfloat16).float()


@sgl("fp8_dynamic_per_token_quant", "sgl_per_token_quant_fp8")
def fp8_dynamic_per_token_quant(case: Case) -> dict[str, torch.Tensor]:
    x = case.inputs["x"]
    q, scale = torch.empty_like(x, dtype=FP8), torch.empty(len(x), 1, device=x.device)
    ops().sgl_per_token_quant_fp8(x, q, scale)
    return {"q": q, "scale": scale.view(-1)}


@sgl("per_token_group_quant_fp8", "sgl_per_token_group_quant_8bit")
def per_token_group_quant_fp8(case: Case) -> dict[str, torch.Tensor]:
    x, group = case.inputs["x"], case.init["group_size"]
    q, scales = torch.empty_like(x, dtype=FP8), torch.empty(len(x), x.shape[1] // group, device=x.device)
    ops().sgl_per_token_group_quant_8bit(x, q, scales, group, 1e-10, -LARGEST, LARGEST, False)
    return {"quantized": q, "scales": scales}


@sgl("moe_topk_gating_softmax", "topk_softmax")
def moe_topk_gating_softmax(case: Case) -> dict[str, torch.Tensor]:
    logits, k = case.inputs["gating_output"], case.init["top_k"]
    weights = torch.empty(len(logits), k, device=logits.device)
    ids = torch.empty(len(logits), k, dtype=torch.int32, device=logits.device)
    ops().topk_softmax(weights, ids, logits, False, 0.0, None)
    return {"topk_weights": weights, "topk_ids": ids}


@sgl("moe_sum_reduce", "moe_sum_reduce")
def moe_sum_reduce(case: Case) -> torch.Tensor:
    x = case.inputs["expert_outputs"]
    out = x.new_empty(x.shape[0], x.shape[2])
    ops().moe_sum_reduce(x, out, case.init["routed_scaling_factor"])
    return out


@sgl("moe_align_block_size", "moe_align_block_size", note="experts shifted by one, as SGLang does for filtered ones")
def moe_align_block_size(case: Case) -> dict[str, torch.Tensor]:
    ids, experts, block = case.inputs["topk_ids"], case.init["num_experts"], case.init["block_size"]
    blocks = -(-(ids.numel() + experts * (block - 1)) // block)
    sizes = (blocks * block, blocks, 1, experts + 2)
    order, owners, used, cumsum = (torch.empty(n, dtype=torch.int32, device=ids.device) for n in sizes)
    ops().moe_align_block_size(ids, experts + 1, block, order, owners, used, cumsum, True)
    return {"sorted_token_ids": order, "expert_ids": owners, "num_tokens_post_pad": used}


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


@sgl("causal_conv1d", "causal_conv1d_fwd")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    x, weight, bias, state = (case.inputs[n] for n in ("x", "weight", "bias", "initial_state"))
    if weight.shape[1] not in (2, 3, 4):
        raise Unsupported("two to four taps")
    bounds = torch.tensor([0, x.shape[1]], dtype=torch.int32, device=x.device)
    row, has = torch.zeros(1, dtype=torch.int32, device=x.device), torch.ones(1, dtype=torch.bool, device=x.device)
    ops().causal_conv1d_fwd(x, weight, bias, state, bounds, row, has, case.init["activation"] == "silu", -1)
    return {"out": x, "initial_state": state}
