"""Gated SiLU: the first half of a row gates the second."""

import torch
from torch import nn


class Model(nn.Module):
    """out = round(silu(x[..., :d])) * x[..., d:], where d is half the last dimension and round is to x's dtype.

    x [..., 2d] -> out [..., d], both of one floating dtype; silu is computed in at least float32.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.silu(gate.to(acc)).to(x.dtype) * up
