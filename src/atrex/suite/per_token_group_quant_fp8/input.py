"""Inputs of per_token_group_quant_fp8: rows of several distributions, each group at a magnitude of its own."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]

GROUP = 128
ROWS_AT_ONCE = 2**18  # bounds the temporaries at the largest published shape, 12.6 GB of x


def make_inputs(token_count: int, hidden_size: int) -> Inputs:
    """x [token_count, hidden_size] bf16; a group's magnitude is log-uniform over a factor of eight beside its row's."""
    x = torch.empty(token_count, hidden_size, dtype=torch.bfloat16)
    for start in range(0, token_count, ROWS_AT_ONCE):
        rows = x[start : start + ROWS_AT_ONCE]
        rows.copy_(mixed_rows(rows.shape[0], hidden_size, torch.bfloat16))
        groups = rows.view(rows.shape[0], -1, GROUP)
        groups.mul_(torch.empty(*groups.shape[:2], 1).uniform_(-1.5, 1.5).exp2_().to(torch.bfloat16))
    return {"x": x}


def corner_cases(token_count: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, tiny groups (some zero, one under the floor), groups near bfloat16's largest, spikes.

    `spike`: the largest of a group is negative and 2^16 times the rest, so that the rest lands among fp8's subnormals.
    """

    def scaled(tokens: int, factor: float) -> Inputs:
        return {"x": make_inputs(tokens, hidden_size)["x"].mul_(factor)}

    def tiny() -> Inputs:
        inputs = scaled(16, 2.0**-20)
        inputs["x"][5, GROUP:] = 0
        inputs["x"][6, :GROUP] *= 2.0**-40
        return inputs

    def spike() -> Inputs:
        groups = hidden_size // GROUP
        x = torch.randn(16, hidden_size, dtype=torch.bfloat16).clamp_(-3, 3)
        at = torch.randint(GROUP, (16, groups)) + GROUP * torch.arange(groups)
        return {"x": x.scatter_(1, at, -(2.0**16))}

    return {
        "one_token": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(37, hidden_size),
        "tiny": tiny,
        "large": lambda: scaled(16, 2.0**110),
        "spike": spike,
    }
