"""flash-linear-attention (fla-core): Triton kernels of norms and of the gated delta rule."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from atrex.baselines.base import Baseline

BASELINE = Baseline("fla", __file__, "fla-core", "pip install fla-core==0.5.2", ("0.5.2",))
LOG2_E = math.log2(math.e)  # its kernels of chunks take decays as exponents of two


@BASELINE.covers("l2_norm", "l2norm_fwd")
class L2Norm(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        from fla.modules.l2norm import l2norm_fwd

        self.kernel = l2norm_fwd

    def forward(self, x):
        return self.kernel(x, eps=1e-6)[0]


@BASELINE.covers("rms_norm", "rms_norm")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        from fla.modules.layernorm import rms_norm

        self.kernel, self.eps = rms_norm, eps

    def forward(self, x, weight):
        return self.kernel(x, weight, None, eps=self.eps)


@BASELINE.covers("fused_add_rms_norm", "rms_norm with a residual")
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        from fla.modules.layernorm import rms_norm

        self.kernel, self.eps = rms_norm, eps

    def forward(self, x, residual, weight):
        out, total = self.kernel(x, weight, None, residual=residual, eps=self.eps, prenorm=True)
        return {"out": out, "residual": total}


@BASELINE.covers("layer_norm", "layer_norm")
class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        from fla.modules.layernorm import layer_norm

        self.kernel = layer_norm

    def forward(self, x, weight, bias):
        return self.kernel(x, weight, bias, eps=1e-5)


@BASELINE.covers("gated_rms_norm", "layernorm_gated")
class GatedRmsNorm(nn.Module):
    def __init__(self, eps, norm_before_gate, activation):
        super().__init__()
        from fla.modules.layernorm_gated import rmsnorm_fn

        self.kernel, self.eps, self.norm_before_gate = rmsnorm_fn, eps, norm_before_gate

    def forward(self, x, weight, z):
        return self.kernel(x, weight, None, z=z, eps=self.eps, norm_before_gate=self.norm_before_gate)


@BASELINE.covers("causal_conv1d", "causal_conv1d", note="transposes: tokens come first there")
class CausalConv1d(nn.Module):
    def __init__(self, activation):
        super().__init__()
        from fla.modules.conv import causal_conv1d

        self.kernel, self.activation = causal_conv1d, activation

    def forward(self, x, weight, bias, initial_state):
        # Its state has as many samples as the kernel has taps; the oldest is never read.
        wide = F.pad(initial_state, (weight.shape[1] - initial_state.shape[2], 0)).contiguous()
        out, after = self.kernel(
            x.t()[None].contiguous(), weight, bias, initial_state=wide, output_final_state=True,
            activation=self.activation,
        )  # fmt: skip
        initial_state.copy_(after[..., -initial_state.shape[2] :])
        return out[0].t().contiguous()


@BASELINE.covers("chunk_delta_rule_output", "chunk_fwd_o")
class ChunkDeltaRuleOutput(nn.Module):
    def __init__(self, chunk_size):
        super().__init__()
        from fla.ops.common.chunk_o import chunk_fwd_o

        self.kernel, self.chunk_size = chunk_fwd_o, chunk_size

    def forward(self, q, k, v, h, g):
        return self.kernel(
            q=q, k=k, v=v, h=h, g=g * LOG2_E, scale=q.shape[-1] ** -0.5, chunk_size=self.chunk_size
        )  # fmt: skip


@BASELINE.covers(
    "chunk_gated_delta_rule_state", "chunk_gated_delta_rule_fwd_h",
    note="a row of the pool by sequence, gathered and put back",
)  # fmt: skip
class ChunkGatedDeltaRuleState(nn.Module):
    def __init__(self, chunk_size):
        super().__init__()
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        self.kernel, self.chunk_size = chunk_gated_delta_rule_fwd_h, chunk_size

    def forward(self, k, w, u, g, initial_state, initial_state_indices):
        h, v_new, state = self.kernel(
            k=k, w=w, u=u, g=g * LOG2_E, initial_state=initial_state[initial_state_indices], output_final_state=True,
            chunk_size=self.chunk_size,
        )  # fmt: skip
        initial_state.index_copy_(0, initial_state_indices.long(), state)
        return {"h": h, "v_new": v_new}


@BASELINE.covers(
    "gated_delta_rule_update", "fused_recurrent_gated_delta_rule, chunk_gated_delta_rule from 64 tokens on",
    note="states gathered and put back",
    lacks=lambda init, inputs: None
    if (init["softplus_beta"], init["softplus_threshold"]) == (1.0, 20.0) else "softplus with its defaults only",
)  # fmt: skip
class GatedDeltaRuleUpdate(nn.Module):
    """As Qwen3-Next's layer calls it: the recurrence for few tokens, chunks for many."""

    def __init__(self, softplus_beta, softplus_threshold, use_qk_l2norm):
        super().__init__()
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

        self.recurrent, self.chunked = fused_recurrent_gated_delta_rule, chunk_gated_delta_rule
        self.unit = use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        named, rows = initial_state_indices >= 0, initial_state_indices.long()
        state = initial_state[rows.clamp(min=0)] * named[:, None, None, None]
        out, state = (self.chunked if v.shape[1] >= 64 else self.recurrent)(
            q, k, v, g=a, beta=b, A_log=A_log, dt_bias=dt_bias, use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, use_qk_l2norm_in_kernel=self.unit, initial_state=state,
            output_final_state=True,
        )  # fmt: skip
        keep = torch.where(named)[0]
        initial_state.index_copy_(0, rows[keep], state[keep].to(initial_state.dtype))
        return out.to(v.dtype)
