"""RMS normalisation over the last dimension."""

import torch
from torch import nn


class Model(nn.Module):
    """out = x * rsqrt(mean(x^2, last dim) + eps) * weight, accumulated in at least float32, rounded once at the end.

    x [tokens, hidden], weight [hidden] -> out [tokens, hidden], all of one floating dtype.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        wide = x.to(acc)
        inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * inverse_rms * weight.to(acc)).to(x.dtype)
