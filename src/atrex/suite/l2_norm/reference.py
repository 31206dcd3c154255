"""Normalisation of rows to unit length."""

import torch
from torch import nn

EPS = 1e-6


class Model(nn.Module):
    """out = x * rsqrt(sum(x^2, last dim) + 1e-6), accumulated in at least float32, rounded once at the end.

    x [tokens, hidden] -> out [tokens, hidden], both of one floating dtype.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPS)).to(x.dtype)
