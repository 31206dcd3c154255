"""Sum of the experts' outputs of a token, scaled."""

import torch
from torch import nn

TOKENS_AT_ONCE = 4096  # bounds the widened copy of expert_outputs


class Model(nn.Module):
    """out[t] = routed_scaling_factor * sum over j of expert_outputs[t, j], accumulated in at least float32.

    expert_outputs [tokens, k, hidden] -> out [tokens, hidden] in its dtype.
    """

    def __init__(self, routed_scaling_factor: float) -> None:
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(expert_outputs.dtype, torch.float32)
        sums = [part.to(acc).sum(dim=1) for part in expert_outputs.split(TOKENS_AT_ONCE)]
        return (torch.cat(sums) * self.routed_scaling_factor).to(expert_outputs.dtype)
