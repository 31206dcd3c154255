"""AITER: AMD's kernels for serving, compiled for the device when they are first called."""

from __future__ import annotations

import os

import torch
from torch import nn

from atrex.baselines.base import Baseline

BASELINE = Baseline(
    "aiter", __file__, "amd-aiter", "pip install amd-aiter", ("0.1.7",), devices=("cuda",), production=True
)


def keep():
    """Let AITER compile into the folder that all units of this candidate share, where there is one."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        os.environ.setdefault("AITER_JIT_DIR", os.environ["TORCH_EXTENSIONS_DIR"])


@BASELINE.covers("rms_norm", "rms_norm")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        keep()
        from aiter import rms_norm

        self.kernel, self.eps = rms_norm, eps

    def forward(self, x, weight):
        return self.kernel(x, weight, self.eps)


@BASELINE.covers("fused_add_rms_norm", "rmsnorm2d_fwd_with_add")
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        keep()
        from aiter import rmsnorm2d_fwd_with_add

        self.kernel, self.eps = rmsnorm2d_fwd_with_add, eps

    def forward(self, x, residual, weight):
        out, total = torch.empty_like(x), torch.empty_like(x)
        self.kernel(out, x, residual, total, weight, self.eps)
        return {"out": out, "residual": total}


@BASELINE.covers("fused_rmsnorm_quant", "rmsnorm2d_fwd_with_add_dynamicquant")
class FusedRmsNormQuant(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        keep()
        from aiter import dtypes, rmsnorm2d_fwd_with_add_dynamicquant

        self.kernel, self.eps, self.fp8 = rmsnorm2d_fwd_with_add_dynamicquant, eps, dtypes.fp8

    def forward(self, x, residual, weight):
        q, total = torch.empty_like(x, dtype=self.fp8), torch.empty_like(x)
        scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
        self.kernel(q, x, residual, total, scale, weight, self.eps)
        return {"quantized": q, "scale": scale, "residual_out": total}


@BASELINE.covers("layer_norm", "layernorm2d_fwd")
class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from aiter import layernorm2d_fwd

        self.kernel = layernorm2d_fwd

    def forward(self, x, weight, bias):
        return self.kernel(x.view(-1, x.shape[-1]), weight, bias, 1e-5).view(x.shape)


@BASELINE.covers("silu_and_mul", "silu_and_mul")
class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from aiter import silu_and_mul

        self.kernel = silu_and_mul

    def forward(self, x):
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        self.kernel(out, x)
        return out


@BASELINE.covers("fp8_dynamic_per_token_quant", "dynamic_per_token_scaled_quant")
class Fp8DynamicPerTokenQuant(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from aiter import dtypes, dynamic_per_token_scaled_quant

        self.kernel, self.fp8 = dynamic_per_token_scaled_quant, dtypes.fp8

    def forward(self, x):
        q = torch.empty_like(x, dtype=self.fp8)
        scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
        self.kernel(q, x, scale)
        return {"q": q, "scale": scale.view(-1)}


@BASELINE.covers(
    "per_token_group_quant_fp8", "per_group_quant_hip",
    lacks=lambda init, inputs: None if init["group_size"] in (32, 64, 128) else "groups of 32, 64 and 128 only",
)  # fmt: skip
class PerTokenGroupQuantFp8(nn.Module):
    def __init__(self, group_size):
        super().__init__()
        keep()
        from aiter import dtypes, per_group_quant_hip

        self.kernel, self.fp8, self.size = per_group_quant_hip, dtypes.fp8, group_size

    def forward(self, x):
        q, scales = self.kernel(x, quant_dtype=self.fp8, group_size=self.size)
        return {"quantized": q, "scales": scales}


@BASELINE.covers("block_scaled_mm", "gemm_a8w8_blockscale", note="its bf16 result widened")
class BlockScaledMm(nn.Module):
    def __init__(self, group_n, group_k):
        super().__init__()
        keep()
        from aiter import gemm_a8w8_blockscale

        self.kernel = gemm_a8w8_blockscale

    def forward(self, a, b, a_scales, b_scales):
        return self.kernel(a, b, a_scales, b_scales, torch.bfloat16).float()


@BASELINE.covers("moe_topk_gating_softmax", "topk_softmax")
class MoeTopkGatingSoftmax(nn.Module):
    def __init__(self, top_k):
        super().__init__()
        keep()
        from aiter import topk_softmax

        self.kernel, self.top_k = topk_softmax, top_k

    def forward(self, gating_output):
        size = len(gating_output), self.top_k
        weights = torch.empty(size, device=gating_output.device)
        ids, rows = (torch.empty(size, dtype=torch.int32, device=gating_output.device) for _ in range(2))
        self.kernel(weights, ids, rows, gating_output, False)
        return {"topk_weights": weights, "topk_ids": ids}


@BASELINE.covers(
    "moe_sum_reduce", "moe_sum",
    lacks=lambda init, inputs: None if init["routed_scaling_factor"] == 1 else "no scaling factor",
)  # fmt: skip
class MoeSumReduce(nn.Module):
    def __init__(self, routed_scaling_factor):
        super().__init__()
        keep()
        from aiter import moe_sum

        self.kernel = moe_sum

    def forward(self, expert_outputs):
        out = expert_outputs.new_empty(expert_outputs.shape[0], expert_outputs.shape[2])
        self.kernel(expert_outputs, out)
        return out


@BASELINE.covers("reshape_and_cache", "reshape_and_cache_flash")
class ReshapeAndCache(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from aiter import reshape_and_cache_flash

        self.kernel = reshape_and_cache_flash
        self.register_buffer("one", torch.ones((), dtype=torch.float32))

    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        self.kernel(key, value, key_cache, value_cache, slot_mapping, "auto", self.one, self.one)


@BASELINE.covers("attention_forward", "flash_attn_varlen_func", note="reads the longest lengths")
class AttentionForward(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from aiter import flash_attn_varlen_func

        self.kernel = flash_attn_varlen_func

    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        longest = (int(bounds.diff().max()) for bounds in (cu_seqlens_q, cu_seqlens_k))
        return self.kernel(
            q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, softmax_scale=q.shape[-1] ** -0.5, causal=False
        )  # fmt: skip


@BASELINE.covers(
    "unified_attention", "ops.triton.unified_attention.unified_attention", note="reads the longest lengths"
)
class UnifiedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from aiter.ops.triton.unified_attention import unified_attention

        self.kernel = unified_attention

    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        out = torch.zeros_like(q)
        self.kernel(
            q, k_cache, v_cache, out, cu_seqlens_q, int(cu_seqlens_q.diff().max()), seqused_k, int(seqused_k.max()),
            q.shape[-1] ** -0.5, True, (-1, -1), block_table, 0.0, None, None, None,
        )  # fmt: skip
        return out


@BASELINE.covers("mla_decode_attention", "mla.mla_decode_fwd", note="makes the table of rows from the lengths")
class MlaDecodeAttention(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        keep()
        from aiter.mla import mla_decode_fwd

        self.kernel, self.rank = mla_decode_fwd, kv_lora_rank

    def forward(self, q, kv_cache, seq_lens):
        bounds = torch.cat([seq_lens.new_zeros(1), seq_lens.cumsum(0, dtype=torch.int32)])
        rows = torch.arange(len(kv_cache), dtype=torch.int32, device=q.device)
        one = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
        out = q.new_empty(*q.shape[:2], self.rank)
        pages = kv_cache.view(-1, 1, 1, kv_cache.shape[-1])
        self.kernel(q, pages, out, one, bounds, rows, torch.ones_like(seq_lens), 1, q.shape[-1] ** -0.5)
        return out
