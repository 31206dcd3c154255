"""vLLM: its compiled operators, called as its own Python calls them, and its Triton kernels.

Compiled operators are loaded from their libraries alone, without importing vLLM, which imports a whole server.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import nn

from atrex.baselines.base import Baseline

BASELINE = Baseline(
    "vllm", __file__, "vllm", "pip install vllm==0.20.2", ("0.20.2",), devices=("cuda",), production=True
)
FP8 = torch.float8_e4m3fn


def load(file):
    """Load a compiled library of the installed vLLM: its operators appear under torch.ops."""
    found = importlib.util.find_spec("vllm")
    if found is None:
        raise ImportError("vllm is not installed")
    torch.ops.load_library(os.path.join(list(found.submodule_search_locations)[0], file))


@BASELINE.covers("rms_norm", "_C.rms_norm")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        load("_C.abi3.so")
        self.eps = eps

    def forward(self, x, weight):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, self.eps)
        return out


@BASELINE.covers(
    "fused_add_rms_norm", "_C.fused_add_rms_norm", note="copies x and residual: it overwrites them", adapted=True
)
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        load("_C.abi3.so")
        self.eps = eps

    def forward(self, x, residual, weight):
        x, residual = x.clone(), residual.clone()
        torch.ops._C.fused_add_rms_norm(x, residual, weight, self.eps)
        return {"out": x, "residual": residual}


@BASELINE.covers("fused_qk_rmsnorm", "_C.rms_norm by head", note="heads taken out and put together again", adapted=True)
class FusedQkRmsNorm(nn.Module):
    def __init__(self, head_num, kv_head_num, size_per_head, eps=1e-6):
        super().__init__()
        load("_C.abi3.so")
        self.sizes = [n * size_per_head for n in (head_num, kv_head_num, kv_head_num)]
        self.size, self.eps = size_per_head, eps

    def forward(self, hidden_states, q_weight, k_weight):
        parts = list(hidden_states.split(self.sizes, dim=1))
        for i, weight in enumerate((q_weight, k_weight)):
            heads = parts[i].reshape(-1, self.size)
            out = torch.empty_like(heads)
            torch.ops._C.rms_norm(out, heads, weight, self.eps)
            parts[i] = out.view(len(hidden_states), -1)
        return torch.cat(parts, dim=1)


@BASELINE.covers("silu_and_mul", "_C.silu_and_mul")
class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        load("_C.abi3.so")

    def forward(self, x):
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        torch.ops._C.silu_and_mul(out, x)
        return out


@BASELINE.covers("fp8_dynamic_per_token_quant", "_C.dynamic_per_token_scaled_fp8_quant")
class Fp8DynamicPerTokenQuant(nn.Module):
    def __init__(self):
        super().__init__()
        load("_C.abi3.so")

    def forward(self, x):
        q, scale = torch.empty_like(x, dtype=FP8), torch.empty(len(x), 1, device=x.device)
        torch.ops._C.dynamic_per_token_scaled_fp8_quant(q, x, scale, None)
        return {"q": q, "scale": scale.view(-1)}


@BASELINE.covers(
    "fused_rmsnorm_quant", "_C.rms_norm_dynamic_per_token_quant", note="copies residual: it overwrites it", adapted=True
)
class FusedRmsNormQuant(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        load("_C.abi3.so")
        self.eps = eps

    def forward(self, x, residual, weight):
        residual = residual.clone()
        q, scale = torch.empty_like(x, dtype=FP8), torch.empty(len(x), 1, device=x.device)
        torch.ops._C.rms_norm_dynamic_per_token_quant(q, x, weight, scale, self.eps, None, residual)
        return {"quantized": q, "scale": scale, "residual_out": residual}


@BASELINE.covers("per_token_group_quant_fp8", "_C.per_token_group_fp8_quant")
class PerTokenGroupQuantFp8(nn.Module):
    def __init__(self, group_size):
        super().__init__()
        load("_C_stable_libtorch.abi3.so")
        self.size, self.largest = group_size, torch.finfo(FP8).max

    def forward(self, x):
        q = torch.empty_like(x, dtype=FP8)
        scales = torch.empty(len(x), x.shape[1] // self.size, device=x.device)
        torch.ops._C.per_token_group_fp8_quant(
            x, q, scales, self.size, 1e-10, -self.largest, self.largest, False, False, False
        )
        return {"quantized": q, "scales": scales}


@BASELINE.covers("paged_attention_decode", "_C.paged_attention_v1", note="reads the longest length from the device")
class PagedAttentionDecode(nn.Module):
    def __init__(self):
        super().__init__()
        load("_C.abi3.so")
        self.register_buffer("one", torch.ones((), dtype=torch.float32))

    def forward(self, query, k_cache, v_cache, block_tables, seq_lens):
        out = torch.empty_like(query)
        torch.ops._C.paged_attention_v1(
            out, query, k_cache, v_cache, k_cache.shape[1], query.shape[-1] ** -0.5, block_tables, seq_lens,
            k_cache.shape[3], int(seq_lens.max()), None, "auto", self.one, self.one, 0, 0, 0, 64, 0,
        )  # fmt: skip
        return out


@BASELINE.covers("reshape_and_cache", "_C_cache_ops.reshape_and_cache_flash")
class ReshapeAndCache(nn.Module):
    def __init__(self):
        super().__init__()
        load("_C.abi3.so")
        self.register_buffer("one", torch.ones((), dtype=torch.float32))

    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        torch.ops._C_cache_ops.reshape_and_cache_flash(
            key, value, key_cache, value_cache, slot_mapping, "auto", self.one, self.one
        )


@BASELINE.covers("moe_topk_gating_softmax", "_moe_C.topk_softmax")
class MoeTopkGatingSoftmax(nn.Module):
    def __init__(self, top_k):
        super().__init__()
        load("_moe_C.abi3.so")
        self.top_k = top_k

    def forward(self, gating_output):
        size = len(gating_output), self.top_k
        weights = torch.empty(size, device=gating_output.device)
        ids, rows = (torch.empty(size, dtype=torch.int32, device=gating_output.device) for _ in range(2))
        torch.ops._moe_C.topk_softmax(weights, ids, rows, gating_output, False, None)
        return {"topk_weights": weights, "topk_ids": ids}


@BASELINE.covers("moe_align_block_size", "_moe_C.moe_align_block_size")
class MoeAlignBlockSize(nn.Module):
    def __init__(self, block_size, num_experts):
        super().__init__()
        load("_moe_C.abi3.so")
        self.block, self.experts = block_size, num_experts

    def forward(self, topk_ids):
        blocks = -(-(topk_ids.numel() + self.experts * (self.block - 1)) // self.block)
        sizes = (blocks * self.block, blocks, 1)
        ids, owners, used = (torch.empty(n, dtype=torch.int32, device=topk_ids.device) for n in sizes)
        torch.ops._moe_C.moe_align_block_size(topk_ids, self.experts, self.block, ids, owners, used, None)
        return {"sorted_token_ids": ids, "expert_ids": owners, "num_tokens_post_pad": used}


@BASELINE.covers(
    "moe_sum_reduce", "_moe_C.moe_sum",
    lacks=lambda init, inputs: None if init["routed_scaling_factor"] == 1 else "no scaling factor",
)  # fmt: skip
class MoeSumReduce(nn.Module):
    def __init__(self, routed_scaling_factor):
        super().__init__()
        load("_moe_C.abi3.so")

    def forward(self, expert_outputs):
        out = expert_outputs.new_empty(expert_outputs.shape[0], expert_outputs.shape[2])
        torch.ops._moe_C.moe_sum(expert_outputs, out)
        return out


@BASELINE.covers("unified_attention", "triton_unified_attention.unified_attention", note="reads the longest lengths")
class UnifiedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        self.kernel = unified_attention

    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        out = torch.zeros_like(q)
        self.kernel(
            q=q, k=k_cache, v=v_cache, out=out, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=int(cu_seqlens_q.diff().max()),
            seqused_k=seqused_k, max_seqlen_k=int(seqused_k.max()), softmax_scale=q.shape[-1] ** -0.5, causal=True,
            window_size=(-1, -1), block_table=block_table, softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
        )  # fmt: skip
        return out


@BASELINE.covers("attention_forward", "vllm_flash_attn.flash_attn_varlen_func", note="reads the longest lengths")
class AttentionForward(nn.Module):
    def __init__(self):
        super().__init__()
        from vllm.vllm_flash_attn import flash_attn_varlen_func
        from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported

        self.kernel, self.version = flash_attn_varlen_func, 3 if is_fa_version_supported(3) else 2

    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        longest_q, longest_k = (int(bounds.diff().max()) for bounds in (cu_seqlens_q, cu_seqlens_k))
        return self.kernel(
            q, k, v, max_seqlen_q=longest_q, cu_seqlens_q=cu_seqlens_q, max_seqlen_k=longest_k,
            cu_seqlens_k=cu_seqlens_k, softmax_scale=q.shape[-1] ** -0.5, causal=False, fa_version=self.version,
        )  # fmt: skip


@BASELINE.covers(
    "mla_decode_attention", "triton_decode_attention.decode_attention_fwd",
    note="4 splits; makes the table of rows from the lengths",
)  # fmt: skip
class MlaDecodeAttention(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

        self.kernel, self.rank, self.splits = decode_attention_fwd, kv_lora_rank, 4

    def forward(self, q, kv_cache, seq_lens):
        out, lse = q.new_empty(*q.shape[:2], self.rank), q.new_empty(*q.shape[:2])
        logits = torch.empty(*q.shape[:2], self.splits, self.rank + 1, dtype=torch.float32, device=q.device)
        ends = seq_lens.long().cumsum(0)
        place = torch.arange(int(seq_lens.max()), device=q.device)
        rows = torch.minimum((ends - seq_lens)[:, None] + place, ends[-1] - 1).int()
        self.kernel(
            q, kv_cache, kv_cache[..., : self.rank], out, lse, rows, seq_lens, logits, self.splits,
            q.shape[-1] ** -0.5, page_size=1, is_mla=True,
        )  # fmt: skip
        return out


@BASELINE.covers(
    "topk_filter", "topk_topp_triton.apply_top_k_top_p_triton", note="copies logits: it overwrites them", adapted=True
)
class TopkFilter(nn.Module):
    def __init__(self, top_k=50):
        super().__init__()
        from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

        self.kernel, self.top_k = apply_top_k_top_p_triton, top_k

    def forward(self, logits):
        least = min(self.top_k, logits.shape[1])
        k = torch.full((len(logits),), least, dtype=torch.int32, device=logits.device)
        return self.kernel(logits.clone(), k, None)


@BASELINE.covers(
    "mrope", "rotary_embedding.mrope.triton_mrope", note="copies q and k: it overwrites them", adapted=True,
    lacks=lambda init, inputs: None if init["is_neox_style"] else "neox style only",
)  # fmt: skip
class Mrope(nn.Module):
    def __init__(self, head_size, rotary_dim, mrope_section, mrope_interleaved, is_neox_style):
        super().__init__()
        from vllm.model_executor.layers.rotary_embedding.mrope import triton_mrope

        self.kernel, self.how = triton_mrope, (mrope_section, head_size, rotary_dim, mrope_interleaved)

    def forward(self, q, k, cos, sin):
        q, k = self.kernel(q.clone(), k.clone(), cos, sin, *self.how)
        return {"q": q, "k": k}


@BASELINE.covers("l2_norm", "fla.ops.l2norm.l2norm_fwd")
class L2Norm(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        from vllm.model_executor.layers.fla.ops.l2norm import l2norm_fwd

        self.kernel = l2norm_fwd

    def forward(self, x):
        return self.kernel(x, eps=1e-6)


@BASELINE.covers("gated_rms_norm", "fla.ops.layernorm_guard.layer_norm_fwd")
class GatedRmsNorm(nn.Module):
    def __init__(self, eps, norm_before_gate, activation):
        super().__init__()
        from vllm.model_executor.layers.fla.ops.layernorm_guard import layer_norm_fwd

        self.kernel, self.eps, self.norm_before_gate = layer_norm_fwd, eps, norm_before_gate

    def forward(self, x, weight, z):
        return self.kernel(
            x, weight, None, self.eps, z=z, norm_before_gate=self.norm_before_gate, is_rms_norm=True
        )[0]  # fmt: skip


@BASELINE.covers("chunk_delta_rule_output", "fla.ops.chunk_o.chunk_fwd_o", note="exchanges axes of h", adapted=True)
class ChunkDeltaRuleOutput(nn.Module):
    def __init__(self, chunk_size):
        super().__init__()
        from vllm.model_executor.layers.fla.ops.chunk_o import chunk_fwd_o

        self.kernel = chunk_fwd_o

    def forward(self, q, k, v, h, g):
        return self.kernel(q=q, k=k, v=v, h=h.transpose(-1, -2).contiguous(), g=g, scale=q.shape[-1] ** -0.5)


@BASELINE.covers(
    "chunk_gated_delta_rule_state", "fla.ops.chunk_delta_h.chunk_gated_delta_rule_fwd_h",
    note="a row of the pool by sequence, gathered and put back; exchanges axes of the states", adapted=True,
)  # fmt: skip
class ChunkGatedDeltaRuleState(nn.Module):
    def __init__(self, chunk_size):
        super().__init__()
        from vllm.model_executor.layers.fla.ops.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        self.kernel = chunk_gated_delta_rule_fwd_h

    def forward(self, k, w, u, g, initial_state, initial_state_indices):
        rows = initial_state_indices.long()
        state = initial_state[rows].transpose(-1, -2).contiguous()
        h, new, after = self.kernel(k=k, w=w, u=u, g=g, initial_state=state, output_final_state=True)
        initial_state.index_copy_(0, rows, after.transpose(-1, -2).to(initial_state.dtype))
        return {"h": h.transpose(-1, -2).contiguous(), "v_new": new}


@BASELINE.covers(
    "gated_delta_rule_update", "fla.ops.fused_sigmoid_gating.fused_sigmoid_gating_delta_rule_update",
    note="a row of its own by sequence, row 0 means none; exchanges axes of the states", adapted=True,
)  # fmt: skip
class GatedDeltaRuleUpdate(nn.Module):
    def __init__(self, softplus_beta, softplus_threshold, use_qk_l2norm):
        super().__init__()
        from vllm.model_executor.layers.fla.ops.fused_sigmoid_gating import fused_sigmoid_gating_delta_rule_update

        self.kernel = fused_sigmoid_gating_delta_rule_update
        self.softplus, self.unit = (softplus_beta, softplus_threshold), use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        sequences, tokens = v.shape[:2]
        named, pool_rows = initial_state_indices >= 0, initial_state_indices.long()
        start = initial_state[pool_rows.clamp(min=0)] * named[:, None, None, None]
        states = torch.cat([torch.zeros_like(start[:1]), start]).transpose(-1, -2).contiguous()
        rows = torch.arange(1, sequences + 1, dtype=torch.int32, device=v.device)[:, None].repeat(1, tokens)
        bounds = tokens * torch.arange(sequences + 1, dtype=torch.int32, device=v.device)
        flat = (x.flatten(0, 1)[None].contiguous() for x in (a, b))
        wide = (x.flatten(0, 1)[None].contiguous() for x in (q, k, v))
        out, states = self.kernel(
            A_log, *flat, dt_bias, *wide, *self.softplus, initial_state=states, cu_seqlens=bounds,
            ssm_state_indices=rows, use_qk_l2norm_in_kernel=self.unit,
        )  # fmt: skip
        keep = torch.where(named)[0]
        after = states[1:].transpose(-1, -2)
        initial_state.index_copy_(0, pool_rows[keep], after[keep].to(initial_state.dtype))
        return out.view(v.shape).to(v.dtype)


@BASELINE.covers(
    "causal_conv1d", "mamba.ops.causal_conv1d.causal_conv1d_fn", note="exchanges axes of x, out and the state",
    adapted=True,
)  # fmt: skip
class CausalConv1d(nn.Module):
    def __init__(self, activation):
        super().__init__()
        from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn

        self.kernel, self.activation = causal_conv1d_fn, activation

    def forward(self, x, weight, bias, initial_state):
        # Row 0 of its states means none; channels lie together there.
        states = x.new_zeros(2, initial_state.shape[2], initial_state.shape[1]).transpose(1, 2)
        states[1] = initial_state[0]
        bounds = torch.tensor([0, x.shape[1]], dtype=torch.int32, device=x.device)
        row, has = torch.ones(1, dtype=torch.int32, device=x.device), torch.ones(1, dtype=torch.bool, device=x.device)
        out = self.kernel(
            x.t().contiguous().t(), weight, bias, states, bounds, row, has, activation=self.activation
        )  # fmt: skip
        initial_state.copy_(states[1:])
        return out.contiguous()


@BASELINE.covers("block_scaled_mm", "fp8_utils.w8a8_triton_block_scaled_mm")
class BlockScaledMm(nn.Module):
    def __init__(self, group_n, group_k):
        super().__init__()
        from vllm.model_executor.layers.quantization.utils.fp8_utils import w8a8_triton_block_scaled_mm

        self.kernel, self.block = w8a8_triton_block_scaled_mm, [group_n, group_k]

    def forward(self, a, b, a_scales, b_scales):
        return self.kernel(a, b, a_scales, b_scales, self.block, output_dtype=torch.float32)


@BASELINE.covers("fused_moe", "fused_moe.fused_experts", note="its bf16 result widened")
class FusedMoe(nn.Module):
    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

        self.kernel = fused_experts

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        return self.kernel(hidden_states, w1, w2, topk_weights, topk_ids).float()
