"""Inputs of causal_conv1d: channels of different scale and distribution, a state that continues into the samples."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, dim: int, width: int) -> Inputs:
    """x [dim, token_count], weight [dim, width], bias [dim], initial_state [1, dim, width - 1], all bf16.

    The state has its channel's scale. Taps are of one size and random sign, so none can be left out; the bias is
    smaller than the sum of the taps in most channels.
    """
    samples = mixed_rows(dim, width - 1 + token_count, torch.bfloat16, octaves=1.5)
    return {
        "x": samples[:, width - 1 :].contiguous(),
        "weight": torch.randn(dim, width).to(torch.bfloat16),
        "bias": (0.5 * torch.randn(dim)).to(torch.bfloat16),
        "initial_state": samples[None, :, : width - 1].contiguous(),
    }


def corner_cases(token_count: int, dim: int, width: int) -> dict[str, Callable[[], Inputs]]:
    """One token, fewer tokens than the state holds, as many, a ragged tail, outputs on both ends of the SiLU."""

    def large() -> Inputs:
        inputs = make_inputs(16, dim, width)
        for name in ("x", "initial_state"):
            inputs[name].mul_(8.0)
        return inputs

    return {
        "one_token": lambda: make_inputs(1, dim, width),
        "part_of_the_state": lambda: make_inputs(width - 2, dim, width),
        "whole_state": lambda: make_inputs(width - 1, dim, width),
        "ragged_tail": lambda: make_inputs(37, dim, width),
        "large_samples": large,
    }
