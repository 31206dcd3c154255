"""PyTorch as an eager user would write it: its fused functions where there are any, else the plain reference.

Products and attention run in the dtype of their operands. Sequences of several lengths are computed one by one:
PyTorch has no paged attention, and what it has for ragged ones runs on a GPU alone.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from atrex.baselines.base import Baseline
from atrex.baselines.reference_text import reference_text
from atrex.problems.model import Problem
from atrex.scoring.records import Origin


class Eager(Baseline):
    """Has every operator: without a function of its own, one is the plain reference."""

    def has(self, operator: str) -> bool:
        return True

    def origin(self, operator: str) -> Origin:
        if operator in self.functions:
            return super().origin(operator)
        return Origin(name=self.name, library=self.distribution, version=self.version, calls="the plain reference")

    def text(self, problem: Problem) -> str:
        if problem.operator in self.functions:
            return super().text(problem)
        return reference_text(problem, f"The reference of {problem.operator}, eager.", compiled=False)


BASELINE = Eager("torch", __file__, "torch", "pip install torch", ("2.11", "2.13"), devices=("cpu", "cuda"))


@BASELINE.covers("rms_norm", "F.rms_norm")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)


@BASELINE.covers("fused_add_rms_norm", "torch.add, F.rms_norm")
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        total = torch.add(x, residual)
        return {"out": F.rms_norm(total, x.shape[-1:], weight, self.eps), "residual": total}


@BASELINE.covers("fused_qk_rmsnorm", "F.rms_norm by head")
class FusedQkRmsNorm(nn.Module):
    def __init__(self, head_num, kv_head_num, size_per_head, eps=1e-6):
        super().__init__()
        self.sizes, self.size, self.eps = [head_num, kv_head_num, kv_head_num], size_per_head, eps

    def forward(self, hidden_states, q_weight, k_weight):
        q, k, v = hidden_states.unflatten(-1, (-1, self.size)).split(self.sizes, dim=1)
        q, k = (F.rms_norm(x, (self.size,), weight, self.eps) for x, weight in ((q, q_weight), (k, k_weight)))
        return torch.cat([q, k, v], dim=1).flatten(1)


@BASELINE.covers("layer_norm", "F.layer_norm")
class LayerNorm(nn.Module):
    def forward(self, x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


@BASELINE.covers("silu_and_mul", "F.silu, torch.mul")
class SiluAndMul(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return torch.mul(F.silu(gate), up)


@BASELINE.covers("linear_sigmoid_mul", "torch.mm, torch.sigmoid, torch.mul", note="float32 after the product")
class LinearSigmoidMul(nn.Module):
    def forward(self, hidden_states, weight, bias, post_mul_mat):
        if hidden_states.is_cuda:  # the only device whose product of 16-bit operands can be had in float32
            product = torch.mm(hidden_states, weight.t(), out_dtype=torch.float32)
        else:
            product = hidden_states.float() @ weight.float().t()
        return torch.mul(torch.sigmoid(product + bias), post_mul_mat).to(post_mul_mat.dtype)


@BASELINE.covers("moe_sum_reduce", "torch.sum")
class MoeSumReduce(nn.Module):
    def __init__(self, routed_scaling_factor):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        if self.factor == 1:
            return torch.sum(expert_outputs, dim=1)
        return (torch.sum(expert_outputs, dim=1, dtype=torch.float32) * self.factor).to(expert_outputs.dtype)


@BASELINE.covers("moe_count_and_sort", "torch.sort, torch.searchsorted")
class MoeCountAndSort(nn.Module):
    def __init__(self, num_experts=128, block_size=128):
        super().__init__()
        self.experts = num_experts

    def forward(self, topk_ids):
        owners, order = torch.sort(topk_ids.flatten())
        bounds = torch.arange(self.experts + 1, dtype=owners.dtype, device=owners.device)
        cumsum = torch.searchsorted(owners, bounds, out_int32=True)
        return {"sorted_token_ids": order.int(), "expert_token_counts": cumsum.diff(), "cumsum": cumsum}


@BASELINE.covers("causal_conv1d", "F.conv1d, F.silu", note="in float32, rounded once")
class CausalConv1d(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def forward(self, x, weight, bias, initial_state):
        past = torch.cat([initial_state, x[None]], -1)
        out = F.conv1d(past.float(), weight[:, None].float(), bias.float(), groups=len(weight))[0]
        initial_state.copy_(past[..., x.shape[1] :])
        return (F.silu(out) if self.activation else out).to(x.dtype)


@BASELINE.covers("reshape_and_cache", "torch.Tensor.index_put_")
class ReshapeAndCache(nn.Module):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        live = torch.where(slot_mapping >= 0)[0]
        slots, page = slot_mapping[live], key_cache.shape[1]
        place = (torch.div(slots, page, rounding_mode="floor"), torch.remainder(slots, page))
        key_cache.index_put_(place, key[live])
        value_cache.index_put_(place, value[live])


def attend(q, k, v, scale):
    """q [queries, heads, d], k, v [tokens, kv_heads, d], the queries last: causal, and all of k for a single query."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    if q.shape[2] == 1:
        causal = {}
    elif q.shape[2] == k.shape[2]:
        causal = {"is_causal": True}
    else:
        causal = {"attn_mask": causal_lower_right(q.shape[2], k.shape[2])}
    return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped, **causal)[0].transpose(0, 1)


@BASELINE.covers("attention_forward", "F.scaled_dot_product_attention", note="by sequence, or in one batch")
class AttentionForward(nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        scale = q.shape[-1] ** -0.5
        bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        lengths_q, lengths_k = ({b - a for a, b in zip(x, x[1:], strict=False)} for x in (bounds_q, bounds_k))
        if len(lengths_q) == len(lengths_k) == 1 and bounds_q[-1] == len(q) > 0 and bounds_k[-1] == len(k) > 0:
            whole = (x.unflatten(0, (len(bounds_q) - 1, -1)).transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(*whole, scale=scale).transpose(1, 2).flatten(0, 1)
        out = torch.zeros_like(q)
        for first, last, start, end in zip(bounds_q, bounds_q[1:], bounds_k, bounds_k[1:], strict=False):
            if last > first:
                one = (x.transpose(0, 1)[None] for x in (q[first:last], k[start:end], v[start:end]))
                out[first:last] = F.scaled_dot_product_attention(*one, scale=scale)[0].transpose(0, 1)
        return out


@BASELINE.covers("unified_attention", "F.scaled_dot_product_attention", note="by sequence, pages gathered first")
class UnifiedAttention(nn.Module):
    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        out, page, scale = torch.zeros_like(q), k_cache.shape[1], q.shape[-1] ** -0.5
        bounds = cu_seqlens_q.tolist()
        for s, length in enumerate(seqused_k.tolist()):
            if bounds[s + 1] > bounds[s]:
                pages = block_table[s, : -(-length // page)]
                k, v = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
                out[bounds[s] : bounds[s + 1]] = attend(q[bounds[s] : bounds[s + 1]], k, v, scale)
        return out


@BASELINE.covers("paged_attention_decode", "F.scaled_dot_product_attention", note="one batch, pages gathered first")
class PagedAttentionDecode(nn.Module):
    def forward(self, query, k_cache, v_cache, block_tables, seq_lens):
        sequences, heads, size = query.shape
        kv_heads, page = k_cache.shape[1], k_cache.shape[3]
        tokens = block_tables.shape[1] * page
        keys = k_cache[block_tables].permute(0, 2, 1, 4, 3, 5).reshape(sequences, kv_heads, tokens, size)
        values = v_cache[block_tables].permute(0, 2, 1, 4, 3).reshape(sequences, kv_heads, tokens, size)
        # The query heads of one kv head are as many queries: no kernel has to know of groups.
        grouped = query.view(sequences, kv_heads, heads // kv_heads, size)
        valid = torch.arange(tokens, device=query.device) < seq_lens[:, None]
        for x in (keys, values):  # slots past a sequence's end may hold NaN
            x.masked_fill_(~valid[:, None, :, None], 0)
        mask = valid[:, None, None, :].expand(-1, kv_heads, heads // kv_heads, -1)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=size**-0.5)
        return out.reshape(sequences, heads, size)


@BASELINE.covers("mla_decode_attention", "F.scaled_dot_product_attention", note="by sequence, heads as queries")
class MlaDecodeAttention(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        self.rank, self.scale = kv_lora_rank, (kv_lora_rank + qk_rope_head_dim) ** -0.5

    def forward(self, q, kv_cache, seq_lens):
        out, end = q.new_empty(*q.shape[:2], self.rank), 0
        for s, length in enumerate(seq_lens.tolist()):
            start, end = end, end + length
            tokens = kv_cache[start:end].transpose(0, 1)[None]
            values = tokens[..., : self.rank]
            out[s] = F.scaled_dot_product_attention(q[None, None, s], tokens, values, scale=self.scale)[0, 0]
        return out


@BASELINE.covers("block_scaled_mm", "F.scaled_mm with block-wise scales", note="its bf16 result widened; see the code")
class BlockScaledMm(nn.Module):
    """cuBLASLt's block-scaled product on Hopper, where rows come in fours; else a product of dequantized operands."""

    def __init__(self, group_n, group_k):
        super().__init__()
        self.groups = group_n, group_k

    def forward(self, a, b, a_scales, b_scales):
        hopper = a.is_cuda and torch.cuda.get_device_capability(a.device)[0] == 9
        if hopper and self.groups == (128, 128) and len(a) % 4 == 0 and hasattr(F, "scaled_mm"):
            kinds = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
            left = a_scales.t().contiguous().t()
            right = b_scales.t().contiguous().t() if b_scales.shape[1] % 4 else b_scales
            return F.scaled_mm(a, b.t(), left, kinds[0], right.t(), kinds[1], output_dtype=torch.bfloat16).float()
        spread = b_scales.repeat_interleave(self.groups[0], 0).repeat_interleave(self.groups[1], 1)
        return (a.float() * a_scales.repeat_interleave(self.groups[1], 1)) @ (b.float() * spread).t()


@BASELINE.covers("fused_moe", "F.grouped_mm twice, F.silu", note="bf16 between the products; slots sorted by expert")
class FusedMoe(nn.Module):
    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()
        self.experts, self.top_k = num_experts, top_k
        self.product = F.grouped_mm if hasattr(F, "grouped_mm") else torch._grouped_mm

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        owners, order = torch.sort(topk_ids.flatten())
        experts = torch.arange(self.experts, dtype=owners.dtype, device=owners.device)
        ends = torch.searchsorted(owners, experts, right=True, out_int32=True)
        tokens = torch.div(order, self.top_k, rounding_mode="floor")
        gate, up = self.product(hidden_states[tokens], w1.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        down = self.product(F.silu(gate) * up, w2.transpose(1, 2), offs=ends)
        out = torch.zeros(hidden_states.shape, dtype=torch.float32, device=down.device)
        return out.index_add_(0, tokens, down.float() * topk_weights.flatten()[order, None])
