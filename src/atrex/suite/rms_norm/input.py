"""Inputs of rms_norm: rows of different scale and distribution, a weight that is not one."""

from collections.abc import Callable

import torch

from atrex.suite.draw import heavy_ends, mixed_rows, norm_weight

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, hidden_size: int) -> Inputs:
    """x [token_count, hidden_size] bf16, weight [hidden_size] bf16."""
    return {
        "x": mixed_rows(token_count, hidden_size, torch.bfloat16),
        "weight": norm_weight(hidden_size, torch.bfloat16),
    }


def corner_cases(token_count: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, rows so small that eps matters (one all zero), rows whose squares overflow float16,
    rows whose first and last columns outweigh the rest."""

    def scaled(tokens: int, factor: float) -> Inputs:
        inputs = make_inputs(tokens, hidden_size)
        inputs["x"].mul_(factor)
        return inputs

    def small_rows() -> Inputs:
        inputs = scaled(16, 2.0**-10)
        inputs["x"][5] = 0
        return inputs

    def ends() -> Inputs:
        inputs = make_inputs(16, hidden_size)
        heavy_ends(inputs["x"])
        return inputs

    return {
        "one_token": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(37, hidden_size),
        "small_rows": small_rows,
        "large_rows": lambda: scaled(16, 2.0**40),
        "heavy_ends": ends,
    }
