"""SGLang: its compiled operators (sglang-kernel), called as its own Python calls them, and its Triton kernels.

Compiled operators are loaded from their library alone. States of its delta-rule kernels lie [V, K], ours [K, V].
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import nn

from atrex.baselines.base import Baseline

BASELINE = Baseline(
    "sglang", __file__, "sglang", "pip install sglang==0.5.12 sglang-kernel==0.4.2.post2", ("0.5.12",),
    devices=("cuda",), production=True,
)  # fmt: skip
FP8 = torch.float8_e4m3fn


def load():
    """Load the installed sglang-kernel's library for this device: its operators appear under torch.ops.sgl_kernel."""
    found = importlib.util.find_spec("sgl_kernel")
    if found is None:
        raise ImportError("sglang-kernel is not installed")
    folder = "sm90" if torch.cuda.get_device_capability()[0] == 9 else "sm100"
    path = os.path.join(list(found.submodule_search_locations)[0], folder, "common_ops.abi3.so")
    torch.ops.load_library(path)


@BASELINE.covers("rms_norm", "sgl_kernel.rmsnorm")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        load()
        self.eps = eps

    def forward(self, x, weight):
        out = torch.empty_like(x)
        torch.ops.sgl_kernel.rmsnorm(out, x, weight, self.eps, False)
        return out


@BASELINE.covers(
    "fused_add_rms_norm", "sgl_kernel.fused_add_rmsnorm", note="copies x and residual: it overwrites them", adapted=True
)
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        load()
        self.eps = eps

    def forward(self, x, residual, weight):
        x, residual = x.clone(), residual.clone()
        torch.ops.sgl_kernel.fused_add_rmsnorm(x, residual, weight, self.eps, False)
        return {"out": x, "residual": residual}


@BASELINE.covers(
    "fused_qk_rmsnorm", "sgl_kernel.rmsnorm by head", note="heads taken out and put together again", adapted=True
)
class FusedQkRmsNorm(nn.Module):
    def __init__(self, head_num, kv_head_num, size_per_head, eps=1e-6):
        super().__init__()
        load()
        self.sizes = [n * size_per_head for n in (head_num, kv_head_num, kv_head_num)]
        self.size, self.eps = size_per_head, eps

    def forward(self, hidden_states, q_weight, k_weight):
        parts = list(hidden_states.split(self.sizes, dim=1))
        for i, weight in enumerate((q_weight, k_weight)):
            heads = parts[i].reshape(-1, self.size)
            out = torch.empty_like(heads)
            torch.ops.sgl_kernel.rmsnorm(out, heads, weight, self.eps, False)
            parts[i] = out.view(len(hidden_states), -1)
        return torch.cat(parts, dim=1)


@BASELINE.covers("silu_and_mul", "sgl_kernel.silu_and_mul")
class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        load()

    def forward(self, x):
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        torch.ops.sgl_kernel.silu_and_mul(out, x)
        return out


@BASELINE.covers("block_scaled_mm", "sgl_kernel.fp8_blockwise_scaled_mm", note="its bf16 result widened")
class BlockScaledMm(nn.Module):
    def __init__(self, group_n, group_k):
        super().__init__()
        load()

    def forward(self, a, b, a_scales, b_scales):
        left = a_scales.t().contiguous().t()  # scales of the rows lie together
        return torch.ops.sgl_kernel.fp8_blockwise_scaled_mm(a, b.t(), left, b_scales.t(), torch.bfloat16).float()


@BASELINE.covers("fp8_dynamic_per_token_quant", "sgl_kernel.sgl_per_token_quant_fp8")
class Fp8DynamicPerTokenQuant(nn.Module):
    def __init__(self):
        super().__init__()
        load()

    def forward(self, x):
        q, scale = torch.empty_like(x, dtype=FP8), torch.empty(len(x), 1, device=x.device)
        torch.ops.sgl_kernel.sgl_per_token_quant_fp8(x, q, scale)
        return {"q": q, "scale": scale.view(-1)}


@BASELINE.covers("per_token_group_quant_fp8", "sgl_kernel.sgl_per_token_group_quant_8bit")
class PerTokenGroupQuantFp8(nn.Module):
    def __init__(self, group_size):
        super().__init__()
        load()
        self.size, self.largest = group_size, torch.finfo(FP8).max

    def forward(self, x):
        q = torch.empty_like(x, dtype=FP8)
        scales = torch.empty(len(x), x.shape[1] // self.size, device=x.device)
        torch.ops.sgl_kernel.sgl_per_token_group_quant_8bit(
            x, q, scales, self.size, 1e-10, -self.largest, self.largest, False
        )
        return {"quantized": q, "scales": scales}


@BASELINE.covers("moe_topk_gating_softmax", "sgl_kernel.topk_softmax")
class MoeTopkGatingSoftmax(nn.Module):
    def __init__(self, top_k):
        super().__init__()
        load()
        self.top_k = top_k

    def forward(self, gating_output):
        size = len(gating_output), self.top_k
        weights = torch.empty(size, device=gating_output.device)
        ids = torch.empty(size, dtype=torch.int32, device=gating_output.device)
        torch.ops.sgl_kernel.topk_softmax(weights, ids, gating_output, False, 0.0, None)
        return {"topk_weights": weights, "topk_ids": ids}


@BASELINE.covers("moe_sum_reduce", "sgl_kernel.moe_sum_reduce")
class MoeSumReduce(nn.Module):
    def __init__(self, routed_scaling_factor):
        super().__init__()
        load()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        out = expert_outputs.new_empty(expert_outputs.shape[0], expert_outputs.shape[2])
        torch.ops.sgl_kernel.moe_sum_reduce(expert_outputs, out, self.factor)
        return out


@BASELINE.covers(
    "moe_align_block_size", "sgl_kernel.moe_align_block_size",
    note="experts shifted by one, as SGLang does for filtered ones",
)  # fmt: skip
class MoeAlignBlockSize(nn.Module):
    def __init__(self, block_size, num_experts):
        super().__init__()
        load()
        self.block, self.experts = block_size, num_experts

    def forward(self, topk_ids):
        blocks = -(-(topk_ids.numel() + self.experts * (self.block - 1)) // self.block)
        sizes = (blocks * self.block, blocks, 1, self.experts + 2)
        ids, owners, used, cumsum = (torch.empty(n, dtype=torch.int32, device=topk_ids.device) for n in sizes)
        torch.ops.sgl_kernel.moe_align_block_size(
            topk_ids, self.experts + 1, self.block, ids, owners, used, cumsum, True
        )
        return {"sorted_token_ids": ids, "expert_ids": owners, "num_tokens_post_pad": used}


@BASELINE.covers(
    "causal_conv1d", "sgl_kernel.causal_conv1d_fwd", note="copies x: it overwrites it", adapted=True
)  # fmt: skip
class CausalConv1d(nn.Module):
    def __init__(self, activation):
        super().__init__()
        load()
        self.silu = activation == "silu"

    def forward(self, x, weight, bias, initial_state):
        x = x.clone()
        bounds = torch.tensor([0, x.shape[1]], dtype=torch.int32, device=x.device)
        row, has = torch.zeros(1, dtype=torch.int32, device=x.device), torch.ones(1, dtype=torch.bool, device=x.device)
        torch.ops.sgl_kernel.causal_conv1d_fwd(x, weight, bias, initial_state, bounds, row, has, self.silu, -1)
        return x


@BASELINE.covers("l2_norm", "fla.l2norm.l2norm_fwd")
class L2Norm(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        from sglang.srt.layers.attention.fla.l2norm import l2norm_fwd

        self.kernel = l2norm_fwd

    def forward(self, x):
        return self.kernel(x, eps=1e-6)


@BASELINE.covers("gated_rms_norm", "fla.layernorm_gated._layer_norm_fwd")
class GatedRmsNorm(nn.Module):
    def __init__(self, eps, norm_before_gate, activation):
        super().__init__()
        from sglang.srt.layers.attention.fla.layernorm_gated import _layer_norm_fwd

        self.kernel, self.eps, self.norm_before_gate = _layer_norm_fwd, eps, norm_before_gate

    def forward(self, x, weight, z):
        return self.kernel(
            x, weight, None, self.eps, z=z, norm_before_gate=self.norm_before_gate, is_rms_norm=True
        )[0]  # fmt: skip


@BASELINE.covers("layer_norm", "jit_kernel.diffusion.triton.norm.norm_infer")
class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        from sglang.jit_kernel.diffusion.triton.norm import norm_infer

        self.kernel = norm_infer

    def forward(self, x, weight, bias):
        return self.kernel(x.view(-1, x.shape[-1]), weight, bias, 1e-5).view(x.shape)


@BASELINE.covers("chunk_delta_rule_output", "fla.chunk_o.chunk_fwd_o", note="exchanges axes of h", adapted=True)
class ChunkDeltaRuleOutput(nn.Module):
    def __init__(self, chunk_size):
        super().__init__()
        from sglang.srt.layers.attention.fla.chunk_o import chunk_fwd_o

        self.kernel = chunk_fwd_o

    def forward(self, q, k, v, h, g):
        return self.kernel(q=q, k=k, v=v, h=h.transpose(-1, -2).contiguous(), g=g, scale=q.shape[-1] ** -0.5)


@BASELINE.covers(
    "chunk_gated_delta_rule_state", "fla.chunk_delta_h.chunk_gated_delta_rule_fwd_h",
    note="exchanges axes of the states", adapted=True,
)  # fmt: skip
class ChunkGatedDeltaRuleState(nn.Module):
    def __init__(self, chunk_size):
        super().__init__()
        from sglang.srt.layers.attention.fla.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        self.kernel = chunk_gated_delta_rule_fwd_h

    def forward(self, k, w, u, g, initial_state, initial_state_indices):
        pool = initial_state.transpose(-1, -2).contiguous()
        found = self.kernel(k=k, w=w, u=u, g=g, initial_state=pool, initial_state_indices=initial_state_indices)
        initial_state.copy_(pool.transpose(-1, -2))
        return {"h": found[0].transpose(-1, -2).contiguous(), "v_new": found[1]}


@BASELINE.covers(
    "gated_delta_rule_update", "fla.fused_sigmoid_gating_recurrent.fused_sigmoid_gating_delta_rule_update",
    note="exchanges axes of the states", adapted=True,
)  # fmt: skip
class GatedDeltaRuleUpdate(nn.Module):
    def __init__(self, softplus_beta, softplus_threshold, use_qk_l2norm):
        super().__init__()
        from sglang.srt.layers.attention.fla.fused_sigmoid_gating_recurrent import (
            fused_sigmoid_gating_delta_rule_update,
        )

        self.kernel = fused_sigmoid_gating_delta_rule_update
        self.softplus, self.unit = (softplus_beta, softplus_threshold), use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        pool = initial_state.transpose(-1, -2).contiguous()
        out = self.kernel(
            A_log, a, dt_bias, *self.softplus, q, k, v, b, pool, initial_state_indices,
            use_qk_l2norm_in_kernel=self.unit,
        )  # fmt: skip
        initial_state.copy_(pool.transpose(-1, -2))
        return out


@BASELINE.covers("attention_forward", "sgl_kernel.flash_attn.flash_attn_varlen_func", note="reads the longest lengths")
class AttentionForward(nn.Module):
    def __init__(self):
        super().__init__()
        from sgl_kernel.flash_attn import flash_attn_varlen_func

        self.kernel = flash_attn_varlen_func

    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        longest_q, longest_k = (int(bounds.diff().max()) for bounds in (cu_seqlens_q, cu_seqlens_k))
        return self.kernel(
            q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=longest_q,
            max_seqlen_k=longest_k, softmax_scale=q.shape[-1] ** -0.5, causal=False,
        )  # fmt: skip


@BASELINE.covers(
    "mla_decode_attention", "triton_ops.decode_attention.decode_attention_fwd",
    note="4 splits; makes the table of rows from the lengths",
)  # fmt: skip
class MlaDecodeAttention(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd

        self.kernel, self.rank, self.splits = decode_attention_fwd, kv_lora_rank, 4

    def forward(self, q, kv_cache, seq_lens):
        bounds = torch.cat([seq_lens.new_zeros(1), seq_lens.cumsum(0, dtype=torch.int32)])
        rows = torch.arange(len(kv_cache), dtype=torch.int64, device=q.device)
        out = q.new_empty(*q.shape[:2], self.rank)
        partial = q.shape[0], q.shape[1], self.splits
        logits = torch.empty(*partial, self.rank, dtype=torch.float32, device=q.device)
        lse = torch.empty(partial, dtype=torch.float32, device=q.device)
        splits = torch.full((len(q),), self.splits, dtype=torch.int32, device=q.device)
        self.kernel(
            q, kv_cache, kv_cache[..., : self.rank], out, bounds, rows, logits, lse, splits, self.splits,
            q.shape[-1] ** -0.5, 1.0, 1.0, has_mla=True,
        )  # fmt: skip
        return out
