"""Liger-Kernel: Triton kernels made for training; their forward passes alone are called."""

from __future__ import annotations

import torch
from torch import nn

from atrex.baselines.base import Baseline

BASELINE = Baseline("liger", __file__, "liger-kernel", "pip install liger-kernel==0.8.5", ("0.8.5",))


@BASELINE.covers("rms_norm", "rms_norm_forward")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        self.kernel, self.eps = LigerRMSNormFunction.apply, eps

    def forward(self, x, weight):
        # Gemma's way of casting: all in float32, rounded once.
        return self.kernel(x, weight, self.eps, 0.0, "gemma", False)


@BASELINE.covers("fused_add_rms_norm", "fused_add_rms_norm_forward")
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        self.kernel, self.eps = LigerFusedAddRMSNormFunction.apply, eps

    def forward(self, x, residual, weight):
        out, total = self.kernel(x, residual, weight, self.eps, 0.0, "gemma", False)
        return {"out": out, "residual": total}


@BASELINE.covers("layer_norm", "layer_norm_forward")
class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        self.kernel = LigerLayerNormFunction.apply

    def forward(self, x, weight, bias):
        return self.kernel(x, weight, bias, 1e-5)


@BASELINE.covers("silu_and_mul", "swiglu_forward", note="copies the two halves: it takes them apart")
class SiluAndMul(nn.Module):
    def __init__(self):
        super().__init__()
        import torch.distributed.tensor  # noqa: F401 - the function looks for DTensor there without importing it
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        self.kernel = LigerSiLUMulFunction.apply

    def forward(self, x):
        gate, up = (half.contiguous() for half in x.chunk(2, dim=-1))
        return self.kernel(gate, up)


@BASELINE.covers("fused_moe", "LigerFusedMoEFunction", note="its bf16 result widened")
class FusedMoe(nn.Module):
    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

        self.kernel = LigerFusedMoEFunction.apply

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        return self.kernel(hidden_states, w1, w2, topk_ids, topk_weights).float()


def lacks_rotations(init, inputs):
    """mrope: what of it the kernel does not do."""
    if init["mrope_interleaved"] or not init["is_neox_style"]:
        return "sections one after the other and neox style only"
    return None if init["rotary_dim"] == init["head_size"] else "whole heads only"


@BASELINE.covers(
    "mrope", "qwen2vl_mrope_forward", note="widens q and k: the kernel rounds in between", lacks=lacks_rotations
)
class Mrope(nn.Module):
    def __init__(self, head_size, rotary_dim, mrope_section, mrope_interleaved, is_neox_style):
        super().__init__()
        from liger_kernel.ops.qwen2vl_mrope import LigerQwen2VLMRopeFunction

        self.kernel, self.size, self.section = LigerQwen2VLMRopeFunction.apply, head_size, mrope_section

    def forward(self, q, k, cos, sin):
        wide = (x.unflatten(-1, (-1, self.size)).transpose(0, 1)[None].float() for x in (q, k))
        tables = (torch.cat([x] * 2, -1)[:, None].contiguous() for x in (cos, sin))
        found = self.kernel(*wide, *tables, self.section, 1)
        return {n: t[0].transpose(0, 1).flatten(1).to(q.dtype) for n, t in zip(("q", "k"), found[:2], strict=True)}
