"""QuACK: norms in CuTe DSL, compiled for the device when they are first called."""

from __future__ import annotations

import os

import torch
from torch import nn

from atrex.baselines.base import Baseline

BASELINE = Baseline("quack", __file__, "quack-kernels", "pip install quack-kernels==0.6.5", ("0.6.5",))


def keep():
    """Let QuACK compile into the folder that all units of this candidate share, where there is one."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        os.environ.setdefault("QUACK_CACHE_DIR", os.environ["TORCH_EXTENSIONS_DIR"])


@BASELINE.covers("rms_norm", "rmsnorm.rmsnorm_fwd")
class RmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        keep()
        from quack.rmsnorm import rmsnorm_fwd

        self.kernel, self.eps = rmsnorm_fwd, eps

    def forward(self, x, weight):
        return self.kernel(x, weight, eps=self.eps)[0]


@BASELINE.covers("fused_add_rms_norm", "rmsnorm.rmsnorm_fwd with a residual")
class FusedAddRmsNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        keep()
        from quack.rmsnorm import rmsnorm_fwd

        self.kernel, self.eps = rmsnorm_fwd, eps

    def forward(self, x, residual, weight):
        out, total = self.kernel(x, weight, residual=residual, eps=self.eps)[:2]
        return {"out": out, "residual": total}


@BASELINE.covers("fused_qk_rmsnorm", "rmsnorm.rmsnorm_fwd by head", note="heads taken out and put together again")
class FusedQkRmsNorm(nn.Module):
    def __init__(self, head_num, kv_head_num, size_per_head, eps=1e-6):
        super().__init__()
        keep()
        from quack.rmsnorm import rmsnorm_fwd

        self.kernel, self.eps = rmsnorm_fwd, eps
        self.sizes, self.size = [head_num, kv_head_num, kv_head_num], size_per_head

    def forward(self, hidden_states, q_weight, k_weight):
        q, k, v = hidden_states.unflatten(-1, (-1, self.size)).split(self.sizes, dim=1)
        q, k = (
            self.kernel(x.reshape(-1, self.size), weight, eps=self.eps)[0].view(x.shape)
            for x, weight in ((q, q_weight), (k, k_weight))
        )  # fmt: skip
        return torch.cat([q, k, v], dim=1).flatten(1)


@BASELINE.covers("layer_norm", "rmsnorm.layernorm_fwd", note="widens weight and bias: it takes them in float32")
class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        keep()
        from quack.rmsnorm import layernorm_fwd

        self.kernel = layernorm_fwd

    def forward(self, x, weight, bias):
        return self.kernel(x.view(-1, x.shape[-1]), weight.float(), bias.float(), 1e-5).view(x.shape)
