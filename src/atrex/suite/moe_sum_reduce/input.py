"""Inputs of moe_sum_reduce: tokens at scales of their own, whose slots all weigh in."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows, row_scales

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, top_k: int, hidden_size: int) -> Inputs:
    """expert_outputs [token_count, top_k, hidden_size] bf16.

    A slot's scale stays within a factor of two of its token's, so that none can be left out of the sum.
    """
    slots = mixed_rows(token_count * top_k, hidden_size, torch.bfloat16, octaves=1.0)
    slots = slots.view(token_count, top_k, hidden_size)
    return {"expert_outputs": slots.mul_(row_scales(token_count, octaves=2.0)[:, :, None].to(torch.bfloat16))}


def corner_cases(token_count: int, top_k: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, slots that nearly cancel (bf16 partial sums lose the rest), tiny and huge values."""

    def cancelling() -> Inputs:
        slots = make_inputs(33, top_k, hidden_size)["expert_outputs"]
        slots[:, 0].mul_(256.0)
        slots[:, -1] = -slots[:, 0]
        return {"expert_outputs": slots}

    def scaled(factor: float) -> Inputs:
        return {"expert_outputs": make_inputs(16, top_k, hidden_size)["expert_outputs"].mul_(factor)}

    return {
        "one_token": lambda: make_inputs(1, top_k, hidden_size),
        "ragged_tail": lambda: make_inputs(37, top_k, hidden_size),
        "cancelling": cancelling,
        "tiny": lambda: scaled(2.0**-100),
        "huge": lambda: scaled(2.0**100),
    }
