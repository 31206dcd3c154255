"""PyTorch's own functions. Only where one of them, or an obvious chain, does the whole of the operator's work.

What the baseline calls in the same way is the baseline's. Products and attention run in the dtype of the operands, as
a user would call them; what is small runs in float32.
"""

from __future__ import annotations

import torch
from benchmarks.references.baseline_checks import from_baseline
from benchmarks.references.registry import PYTORCH, Case, check
from torch.nn import functional as F

from atrex.baselines import get


def torch_check(operator: str, name: str, **kwargs):
    return check(operator, name, "torch", PYTORCH, **kwargs)


from_baseline(
    get("torch"), PYTORCH,
    operators=(
        "rms_norm", "fused_add_rms_norm", "fused_qk_rmsnorm", "layer_norm", "silu_and_mul", "reshape_and_cache",
        "block_scaled_mm",
    ),
)  # fmt: skip


@torch_check("linear_sigmoid_mul", "F.linear, torch.sigmoid, torch.mul")
def linear_sigmoid_mul(case: Case) -> torch.Tensor:
    x, weight, bias, other = (case.inputs[n] for n in ("hidden_states", "weight", "bias", "post_mul_mat"))
    return torch.mul(torch.sigmoid(F.linear(x.float(), weight.float(), bias.float())), other).to(other.dtype)


@torch_check("moe_sum_reduce", "torch.sum")
def moe_sum_reduce(case: Case) -> torch.Tensor:
    x = case.inputs["expert_outputs"]
    return (torch.sum(x, dim=1, dtype=torch.float32) * case.init["routed_scaling_factor"]).to(x.dtype)


@torch_check("moe_topk_gating_softmax", "F.softmax, torch.sort")
def moe_topk_gating_softmax(case: Case) -> dict[str, torch.Tensor]:
    weights, ids = torch.sort(F.softmax(case.inputs["gating_output"], -1), dim=-1, descending=True)
    k = case.init["top_k"]
    return {"topk_weights": weights[:, :k].contiguous(), "topk_ids": ids[:, :k].int().contiguous()}


@torch_check("moe_count_and_sort", "torch.sort, torch.bincount, torch.cumsum")
def moe_count_and_sort(case: Case) -> dict[str, torch.Tensor]:
    experts, count = case.inputs["topk_ids"].flatten(), case.init.get("num_experts", 128)
    counts = torch.bincount(experts, minlength=count)
    return {
        "sorted_token_ids": torch.sort(experts).indices.int(),
        "expert_token_counts": counts.int(),
        "cumsum": F.pad(torch.cumsum(counts, 0), (1, 0)).int(),
    }


@torch_check("causal_conv1d", "F.conv1d")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    x, weight, bias, state = (case.inputs[n].float() for n in ("x", "weight", "bias", "initial_state"))
    past = torch.cat([state, x[None]], -1)
    out = F.conv1d(past, weight[:, None], bias, groups=len(weight))[0]
    out = F.silu(out) if case.init["activation"] else out
    dtype = case.inputs["x"].dtype
    return {"out": out.to(dtype), "initial_state": past[..., x.shape[1] :].to(dtype).contiguous()}


@torch_check("topk_filter", "torch.kthvalue, torch.where")
def topk_filter(case: Case) -> torch.Tensor:
    logits = case.inputs["logits"]
    columns = logits.shape[-1]
    if columns <= case.init.get("top_k", 50):
        return logits
    kth = torch.kthvalue(logits, columns - case.init.get("top_k", 50) + 1, dim=-1, keepdim=True).values
    return torch.where(logits >= kth, logits, -torch.inf)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """[queries, heads, d] against [tokens, kv_heads, d] by SDPA; mask [queries, tokens] says what is seen."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


@torch_check("attention_forward", "F.scaled_dot_product_attention by sequence")
def attention_forward(case: Case) -> torch.Tensor:
    q, k, v = (case.inputs[n] for n in ("q", "k", "v"))
    out = torch.zeros_like(q)
    bounds, bounds_k = (case.inputs[n].tolist() for n in ("cu_seqlens_q", "cu_seqlens_k"))
    for start, end, first, last in zip(bounds, bounds[1:], bounds_k, bounds_k[1:], strict=False):
        if end > start:
            out[start:end] = attend(q[start:end], k[first:last], v[first:last], None, q.shape[-1] ** -0.5)
    return out


@torch_check("unified_attention", "F.scaled_dot_product_attention with an explicit mask")
def unified_attention(case: Case) -> torch.Tensor:
    q, table = case.inputs["q"], case.inputs["block_table"].long()
    out = torch.zeros_like(q)
    bounds, used = case.inputs["cu_seqlens_q"].tolist(), case.inputs["seqused_k"].tolist()
    for s, length in enumerate(used):
        rows = slice(bounds[s], bounds[s + 1])
        k, v = (case.inputs[n][table[s]].flatten(0, 1)[:length] for n in ("k_cache", "v_cache"))
        count = rows.stop - rows.start
        mask = torch.ones(count, length, dtype=torch.bool, device=q.device).tril(length - count)
        out[rows] = attend(q[rows], k, v, mask, q.shape[-1] ** -0.5)
    return out


@torch_check("paged_attention_decode", "F.scaled_dot_product_attention by sequence")
def paged_attention_decode(case: Case) -> torch.Tensor:
    query, table = case.inputs["query"], case.inputs["block_tables"].long()
    out = torch.empty_like(query)
    for s, length in enumerate(case.inputs["seq_lens"].tolist()):
        # pages, kv_heads, d/x, page, x  and  pages, kv_heads, d, page  ->  tokens, kv_heads, d
        k = case.inputs["k_cache"][table[s]].permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)[:length]
        v = case.inputs["v_cache"][table[s]].permute(0, 3, 1, 2).flatten(0, 1)[:length]
        out[s] = attend(query[s : s + 1], k, v, None, query.shape[-1] ** -0.5)[0]
    return out


@torch_check("mla_decode_attention", "F.scaled_dot_product_attention by sequence, one key/value head")
def mla_decode_attention(case: Case) -> torch.Tensor:
    q, cache = case.inputs["q"], case.inputs["kv_cache"]
    rank, end, outs = case.init["kv_lora_rank"], 0, []
    for s, length in enumerate(case.inputs["seq_lens"].tolist()):
        start, end = end, end + length
        tokens = cache[start:end]
        outs.append(attend(q[s : s + 1], tokens, tokens[..., :rank], None, q.shape[-1] ** -0.5))
    return torch.cat(outs).contiguous()
