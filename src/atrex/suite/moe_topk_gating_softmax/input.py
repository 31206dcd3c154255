"""Inputs of moe_topk_gating_softmax: flat and peaked rows, and rows with ties."""

from collections.abc import Callable

import torch

from atrex.suite.draw import row_scales

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, num_experts: int) -> Inputs:
    """gating_output [token_count, num_experts] fp32; every fourth row lies on a grid of quarters, so it has ties."""
    logits = torch.randn(token_count, num_experts) * row_scales(token_count, octaves=1.0)
    tied = logits[3::4]
    tied.copy_((tied * 4).round() / 4)
    return {"gating_output": logits}


def corner_cases(token_count: int, num_experts: int) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, few distinct values (one row constant), logits whose exponential overflows float32."""

    def ties() -> Inputs:
        logits = torch.randint(-1, 2, (16, num_experts)).to(torch.float32)
        logits[5] = 1.5
        return {"gating_output": logits}

    def large_logits() -> Inputs:
        logits = make_inputs(16, num_experts)["gating_output"]
        logits[0::2] += 500.0
        logits[1::2] -= 500.0
        return {"gating_output": logits}

    return {
        "one_token": lambda: make_inputs(1, num_experts),
        "ragged_tail": lambda: make_inputs(37, num_experts),
        "ties": ties,
        "large_logits": large_logits,
    }
