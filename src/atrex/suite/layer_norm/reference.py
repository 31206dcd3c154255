"""Layer normalisation over the last dimension."""

import torch
from torch import nn

EPS = 1e-5


class Model(nn.Module):
    """out = (x - mean) * rsqrt(mean((x - mean)^2) + 1e-5) * weight + bias, means over the last dimension.

    x [..., hidden], weight, bias [hidden] -> out [..., hidden], all of one floating dtype; accumulated in at least
    float32, rounded once at the end.
    """

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        wide = x.to(acc)
        centred = wide - wide.mean(-1, keepdim=True)
        inverse_deviation = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
        return (centred * inverse_deviation * weight.to(acc) + bias.to(acc)).to(x.dtype)
