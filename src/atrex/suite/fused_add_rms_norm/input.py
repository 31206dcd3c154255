"""Inputs of fused_add_rms_norm: a residual stream of many scales and an update about as large."""

from collections.abc import Callable

import torch

from atrex.suite.draw import heavy_ends, mixed_rows, norm_weight

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, hidden_size: int) -> Inputs:
    """x, residual [token_count, hidden_size] bf16, weight [hidden_size] bf16."""
    return {
        "x": mixed_rows(token_count, hidden_size, torch.bfloat16, octaves=2.0),
        "residual": mixed_rows(token_count, hidden_size, torch.bfloat16, octaves=2.0),
        "weight": norm_weight(hidden_size, torch.bfloat16),
    }


def corner_cases(token_count: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, an update that nearly cancels the residual, rows so small that eps matters, rows whose
    squares overflow float16, rows whose first and last columns outweigh the rest."""

    def scaled(factor: float) -> Inputs:
        inputs = make_inputs(16, hidden_size)
        inputs["x"].mul_(factor)
        inputs["residual"].mul_(factor)
        return inputs

    def cancelling() -> Inputs:
        inputs = make_inputs(16, hidden_size)
        inputs["residual"] = -inputs["x"] * (1 + 2.0**-5 * torch.randn(16, hidden_size, dtype=torch.bfloat16))
        return inputs

    def ends() -> Inputs:
        inputs = make_inputs(16, hidden_size)
        heavy_ends(inputs["x"])
        return inputs

    return {
        "one_token": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(37, hidden_size),
        "cancelling": cancelling,
        "small_rows": lambda: scaled(2.0**-10),
        "large_rows": lambda: scaled(2.0**40),
        "heavy_ends": ends,
    }
