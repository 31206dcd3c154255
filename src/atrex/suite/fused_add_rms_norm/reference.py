"""Residual addition followed by RMS normalisation."""

import torch
from torch import nn


class Model(nn.Module):
    """residual' = round(x + residual); out = residual' * rsqrt(mean(residual'^2) + eps) * weight.

    x, residual [tokens, hidden], weight [hidden] -> {"out", "residual"} [tokens, hidden], all of one floating dtype.
    Accumulates in at least float32; nothing is changed in place.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        acc = torch.promote_types(x.dtype, torch.float32)
        total = (x.to(acc) + residual.to(acc)).to(x.dtype)
        wide = total.to(acc)
        inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return {"out": (wide * inverse_rms * weight.to(acc)).to(x.dtype), "residual": total}
