"""Inputs of fp8_dynamic_per_token_quant: rows of different scale and distribution."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, hidden_size: int) -> Inputs:
    """x [token_count, hidden_size] bf16."""
    return {"x": mixed_rows(token_count, hidden_size, torch.bfloat16)}


def corner_cases(token_count: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, tiny rows (one all zero, one under the floor), rows near bfloat16's largest, one spike.

    `spike`: the largest of a row is negative and 2^16 times the rest, so that the rest lands among fp8's subnormals; in
    the first two rows it stands in the last and the first column.
    """

    def scaled(tokens: int, factor: float) -> Inputs:
        return {"x": make_inputs(tokens, hidden_size)["x"].mul_(factor)}

    def tiny() -> Inputs:
        inputs = scaled(16, 2.0**-20)
        inputs["x"][5] = 0
        inputs["x"][6] *= 2.0**-40
        return inputs

    def spike() -> Inputs:
        x = torch.randn(16, hidden_size, dtype=torch.bfloat16).clamp_(-3, 3)
        place = torch.randint(hidden_size, (16,))
        place[0], place[1] = hidden_size - 1, 0
        x[torch.arange(16), place] = -(2.0**16)
        return {"x": x}

    return {
        "one_token": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(37, hidden_size),
        "tiny": tiny,
        "large": lambda: scaled(16, 2.0**110),
        "spike": spike,
    }
