"""Inputs of silu_and_mul: gates on both sides of zero, rows of different scale and distribution."""

import math
from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]


def make_inputs(shape: list[int]) -> Inputs:
    """x of `shape` bf16; the last dimension holds the gate and then the value."""
    return {"x": mixed_rows(math.prod(shape[:-1]), shape[-1], torch.bfloat16, octaves=2.0).view(shape)}


def corner_cases(shape: list[int]) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, gates that saturate the sigmoid on both sides, values far below float16's range."""
    width = shape[-1]

    def scaled(gate: float, up: float) -> Inputs:
        x = make_inputs([16, width])["x"]
        x[:, : width // 2] *= gate
        x[:, width // 2 :] *= up
        return {"x": x}

    return {
        "one_token": lambda: make_inputs([1, width]),
        "ragged_tail": lambda: make_inputs([37, width]),
        "saturated_gates": lambda: scaled(64.0, 1.0),
        "tiny_values": lambda: scaled(2.0**-20, 2.0**-20),
    }
