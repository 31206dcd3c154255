"""Inputs of layer_norm: rows of different scale, distribution and mean; a weight that is not one, a bias not zero."""

import math
from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows, norm_weight

Inputs = dict[str, torch.Tensor]


def make_inputs(shape: list[int], offset: float = 2.0) -> Inputs:
    """x of `shape`, weight, bias [shape[-1]], all bf16.

    A row's mean lies between half and all of `offset` times its mean magnitude from zero, on either side.
    """
    rows, hidden = math.prod(shape[:-1]), shape[-1]
    x = mixed_rows(rows, hidden, torch.bfloat16)
    magnitude = x.abs().mean(-1, keepdim=True, dtype=torch.float32)
    away = torch.empty(rows, 1).uniform_(0.5, 1.0) * torch.where(torch.rand(rows, 1) < 0.5, -offset, offset)
    x.add_((magnitude * away).to(torch.bfloat16))
    return {
        "x": x.view(shape),
        "weight": norm_weight(hidden, torch.bfloat16),
        "bias": (0.5 * torch.randn(hidden)).to(torch.bfloat16),
    }


def corner_cases(shape: list[int]) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, rows so small that eps matters (one constant), means far above the deviation."""
    middle = [1] * (len(shape) - 2)

    def drawn(tokens: int, factor: float = 1.0, offset: float = 2.0) -> Inputs:
        inputs = make_inputs([tokens, *middle, shape[-1]], offset)
        inputs["x"].mul_(factor)
        return inputs

    def small_rows() -> Inputs:
        inputs = drawn(16, 2.0**-10)
        inputs["x"][5] = 0.25
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "small_rows": small_rows,
        "large_rows": lambda: drawn(16, 2.0**40),
        "large_means": lambda: drawn(16, offset=32.0),
    }
