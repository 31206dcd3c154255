"""RMS normalisation with a SiLU gate, before or after it."""

import torch
from torch import nn


class Model(nn.Module):
    """out = rms_norm(x) * weight * silu(z), or rms_norm(x * silu(z)) * weight when not norm_before_gate.

    rms_norm(y) = y * rsqrt(mean(y^2, last dim) + eps). x, z [rows, hidden], weight [hidden] -> out [rows, hidden], all
    of one floating dtype; accumulated in at least float32, rounded once at the end.
    """

    def __init__(self, eps: float, norm_before_gate: bool, activation: str) -> None:
        super().__init__()
        if activation != "silu":
            raise ValueError(f"activation {activation!r}: expected 'silu'")
        self.eps = eps
        self.norm_before_gate = norm_before_gate

    def forward(self, x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        wide, gate = x.to(acc), nn.functional.silu(z.to(acc))
        if not self.norm_before_gate:
            wide = wide * gate
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * weight.to(acc)
        return (normed * gate if self.norm_before_gate else normed).to(x.dtype)
