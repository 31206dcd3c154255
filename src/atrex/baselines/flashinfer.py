"""FlashInfer: attention, norms and sampling; compiled for the device when they are first called.

Its attention is planned from lengths and pages on the host. An engine plans once a step, for all layers; a forward
here has to plan each time, so these times stand for no production time.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from atrex.baselines.base import Baseline

BASELINE = Baseline(
    "flashinfer", __file__, "flashinfer-python", "pip install flashinfer-python==0.7.4", ("0.5.3", "0.7.4"),
    devices=("cuda",), production=True,
)  # fmt: skip
WORKSPACE = 256 << 20  # bytes: what its documentation recommends, twice


def keep():
    """Let FlashInfer compile into the folder that all units of this candidate share, where there is one."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", os.environ["TORCH_EXTENSIONS_DIR"])


@BASELINE.covers("rms_norm", "norm.rmsnorm")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        keep()
        from flashinfer.norm import rmsnorm

        self.kernel, self.eps = rmsnorm, eps

    def forward(self, x, weight):
        return self.kernel(x, weight, self.eps)


@BASELINE.covers(
    "fused_add_rms_norm", "norm.fused_add_rmsnorm", note="copies x and residual: it overwrites them", adapted=True
)
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        keep()
        from flashinfer.norm import fused_add_rmsnorm

        self.kernel, self.eps = fused_add_rmsnorm, eps

    def forward(self, x, residual, weight):
        x, residual = x.clone(), residual.clone()
        self.kernel(x, residual, weight, self.eps)
        return {"out": x, "residual": residual}


@BASELINE.covers("fused_qk_rmsnorm", "norm.rmsnorm by head", note="puts the heads together again", adapted=True)
class FusedQkRmsNorm(nn.Module):
    def __init__(self, head_num, kv_head_num, size_per_head, eps=1e-6):
        super().__init__()
        keep()
        from flashinfer.norm import rmsnorm

        self.kernel, self.eps = rmsnorm, eps
        self.sizes, self.size = [head_num, kv_head_num, kv_head_num], size_per_head

    def forward(self, hidden_states, q_weight, k_weight):
        q, k, v = hidden_states.unflatten(-1, (-1, self.size)).split(self.sizes, dim=1)
        q, k = (
            self.kernel(x.reshape(-1, self.size), weight, self.eps).view(x.shape)
            for x, weight in ((q, q_weight), (k, k_weight))
        )  # fmt: skip
        return torch.cat([q, k, v], dim=1).flatten(1)


@BASELINE.covers("layer_norm", "norm.layernorm", note="widens weight and bias: it takes them in float32")
class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from flashinfer.norm import layernorm

        self.kernel = layernorm

    def forward(self, x, weight, bias):
        return self.kernel(x.view(-1, x.shape[-1]), weight.float(), bias.float(), 1e-5).view(x.shape)


@BASELINE.covers("silu_and_mul", "activation.silu_and_mul")
class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from flashinfer.activation import silu_and_mul

        self.kernel = silu_and_mul

    def forward(self, x):
        return self.kernel(x)


@BASELINE.covers("topk_filter", "sampling.top_k_mask_logits")
class TopkFilter(nn.Module):
    def __init__(self, top_k=50):
        super().__init__()
        keep()
        from flashinfer.sampling import top_k_mask_logits

        self.kernel, self.top_k = top_k_mask_logits, top_k

    def forward(self, logits):
        return self.kernel(logits, min(self.top_k, logits.shape[1]))


@BASELINE.covers("fused_qkv_rope", "rope.apply_rope_pos_ids", note="the bias added by torch, v copied")
class FusedQkvRope(nn.Module):
    def __init__(self, num_heads, num_kv_heads, head_dim, rope_dim):
        super().__init__()
        keep()
        from flashinfer.rope import apply_rope_pos_ids

        self.kernel, self.sizes = apply_rope_pos_ids, [num_heads, num_kv_heads, num_kv_heads]
        self.size, self.rotated = head_dim, rope_dim

    def forward(self, qkv, positions, qkv_bias=None):
        wide = qkv if qkv_bias is None else qkv + qkv_bias
        q, k, v = wide.unflatten(-1, (-1, self.size)).split(self.sizes, dim=1)
        q, k = self.kernel(q, k, positions, rotary_dim=self.rotated, interleave=False, rope_theta=1e4)
        return {"q": q, "k": k, "v": v.clone(memory_format=torch.contiguous_format)}


@BASELINE.covers(
    "block_scaled_mm", "gemm.fp8_blockscale_gemm_sm90", note="Hopper only; its bf16 result widened", since="0.7.4"
)
class BlockScaledMm(nn.Module):
    def __init__(self, group_n, group_k):
        super().__init__()
        keep()
        from flashinfer.gemm import fp8_blockscale_gemm_sm90

        self.kernel = fp8_blockscale_gemm_sm90

    def forward(self, a, b, a_scales, b_scales):
        return self.kernel(a, b, a_scales, b_scales).float()


def lacks_head(init, inputs):
    """Attention: what of it the kernels are not compiled for."""
    size = inputs["head_dim" if "head_dim" in inputs else "head_size"]
    return None if size in (64, 128, 256) else "heads of 64, 128 and 256 only"


@BASELINE.covers(
    "attention_forward", "BatchPrefillWithRaggedKVCacheWrapper", note="plans in every forward", adapted=True,
    lacks=lacks_head,
)  # fmt: skip
class AttentionForward(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        self.wrapper = BatchPrefillWithRaggedKVCacheWrapper(torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda"))

    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        self.wrapper.plan(
            cu_seqlens_q, cu_seqlens_k, q.shape[1], k.shape[1], q.shape[2], causal=False, sm_scale=q.shape[2] ** -0.5,
            q_data_type=q.dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        return self.wrapper.run(q, k, v, out=torch.zeros_like(q))


@BASELINE.covers(
    "unified_attention", "BatchPrefillWithPagedKVCacheWrapper", note="plans in every forward", adapted=True,
    lacks=lacks_head,
)  # fmt: skip
class UnifiedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        self.wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda"))

    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        page = k_cache.shape[1]
        pages = (seqused_k + page - 1) // page
        bounds = torch.cat([pages.new_zeros(1), pages.cumsum(0, dtype=torch.int32)])
        used = torch.arange(block_table.shape[1], device=q.device) < pages[:, None]
        self.wrapper.plan(
            cu_seqlens_q, bounds, block_table[used], (seqused_k - 1) % page + 1, q.shape[1], k_cache.shape[2],
            q.shape[2], page, causal=True, sm_scale=q.shape[2] ** -0.5, q_data_type=q.dtype, kv_data_type=q.dtype,
        )  # fmt: skip
        return self.wrapper.run(q, (k_cache, v_cache), out=torch.zeros_like(q))


@BASELINE.covers(
    "mla_decode_attention", "mla.BatchMLAPagedAttentionWrapper", note="plans in every forward", adapted=True,
    lacks=lambda init, inputs: None
    if (init["kv_lora_rank"], init["qk_rope_head_dim"]) == (512, 64) else "ranks of 512 and 64 only",
)  # fmt: skip
class MlaDecodeAttention(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        keep()
        from flashinfer.mla import BatchMLAPagedAttentionWrapper

        self.wrapper = BatchMLAPagedAttentionWrapper(torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda"))
        self.parts = [kv_lora_rank, qk_rope_head_dim]

    def forward(self, q, kv_cache, seq_lens):
        bounds = torch.cat([seq_lens.new_zeros(1), seq_lens.cumsum(0, dtype=torch.int32)])
        rows = torch.arange(len(kv_cache), dtype=torch.int32, device=q.device)
        one = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
        self.wrapper.plan(
            one, bounds, rows, seq_lens, q.shape[1], *self.parts, 1, False, sum(self.parts) ** -0.5, q.dtype,
            kv_cache.dtype,
        )  # fmt: skip
        return self.wrapper.run(*q.split(self.parts, -1), *kv_cache.split(self.parts, -1))
