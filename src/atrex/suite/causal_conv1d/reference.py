"""Depthwise causal convolution along time with a carried state, then bias and SiLU."""

import torch
from torch import nn


class Model(nn.Module):
    """out[c, t] = silu(bias[c] + sum_i weight[c, i] * past[c, t + i]), where past = [initial_state, x] along time.

    x [channels, tokens] (a channel's samples lie together), weight [channels, width], bias [channels], initial_state
    [1, channels, width - 1] -> {"out": [channels, tokens], "initial_state": the last width - 1 samples of past}, all of
    one floating dtype; accumulated in at least float32, rounded once at the end. `activation` None leaves the SiLU out.

    initial_state is updated in place in serving, and so by a candidate, which does not return it. Nothing is changed
    in place here.
    """

    def __init__(self, activation: str | None) -> None:
        super().__init__()
        if activation not in ("silu", None):
            raise ValueError(f"activation {activation!r}: expected 'silu' or None")
        self.activation = activation

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, initial_state: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        acc = torch.promote_types(x.dtype, torch.float32)
        tokens, width = x.shape[1], weight.shape[1]
        past = torch.cat([initial_state[0], x], dim=1)
        total = bias.to(acc)[:, None].expand(-1, tokens)
        for tap in range(width):
            total = total + weight[:, tap, None].to(acc) * past[:, tap : tap + tokens]
        out = nn.functional.silu(total) if self.activation else total
        return {"out": out.to(x.dtype), "initial_state": past[None, :, tokens:].contiguous()}
