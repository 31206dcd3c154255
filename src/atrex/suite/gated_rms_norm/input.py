"""Inputs of gated_rms_norm: rows of different scale and distribution, gates on both sides of zero, a real weight."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows, norm_weight

Inputs = dict[str, torch.Tensor]


def make_inputs(rows: int, hidden_size: int) -> Inputs:
    """x [rows, hidden_size], weight [hidden_size], z [rows, hidden_size], all bf16."""
    return {
        "x": mixed_rows(rows, hidden_size, torch.bfloat16),
        "weight": norm_weight(hidden_size, torch.bfloat16),
        "z": mixed_rows(rows, hidden_size, torch.bfloat16, octaves=1.5),
    }


def corner_cases(rows: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One row, a ragged tail, rows so small that eps matters (one all zero), large rows, gates that saturate."""

    def scaled(count: int, values: float = 1.0, gates: float = 1.0) -> Inputs:
        inputs = make_inputs(count, hidden_size)
        inputs["x"].mul_(values)
        inputs["z"].mul_(gates)
        return inputs

    def small_rows() -> Inputs:
        inputs = scaled(16, 2.0**-10)
        inputs["x"][5] = 0
        return inputs

    return {
        "one_row": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(37, hidden_size),
        "small_rows": small_rows,
        "large_rows": lambda: scaled(16, 2.0**40),
        "saturated_gates": lambda: scaled(16, gates=64.0),
    }
