"""Inputs of fp32_mm: rows of different scale and distribution."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]


def make_inputs(m: int, n: int, k: int) -> Inputs:
    """a [m, k], b [k, n] fp32."""
    return {"a": mixed_rows(m, k, torch.float32), "b": torch.randn(k, n)}


def corner_cases(m: int, n: int, k: int) -> dict[str, Callable[[], Inputs]]:
    """One row, and products that nearly cancel."""

    def cancelling() -> Inputs:
        inputs = make_inputs(16, n, k)
        half = k // 2
        inputs["a"][:, half:] = -inputs["a"][:, :half]
        inputs["b"][half:] = inputs["b"][:half] * (1 + 2.0**-6)
        return inputs

    return {"one_row": lambda: make_inputs(1, n, k), "cancelling": cancelling}
