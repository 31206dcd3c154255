"""Matrix product in float32."""

import torch
from torch import nn


class Model(nn.Module):
    """out = a @ b. a [m, k], b [k, n] of one floating dtype, at least float32 -> out [m, n] of that dtype."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b
