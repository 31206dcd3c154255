"""Inputs of moe_count_and_sort: skewed routing, distinct experts in a row."""

from collections.abc import Callable

import torch

from atrex.suite.routing import crowded_topk_ids, draw_topk_ids

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, num_experts: int, top_k: int) -> Inputs:
    """topk_ids [token_count, top_k] int32; how many slots the experts get is fixed, which expert gets them drawn."""
    return {"topk_ids": draw_topk_ids(token_count, num_experts, top_k)}


def corner_cases(token_count: int, num_experts: int, top_k: int) -> dict[str, Callable[[], Inputs]]:
    """One token; a ragged tail; k experts that get every token, at whole blocks of 128, one over, and one under."""

    def crowded(tokens: int) -> Inputs:
        return {"topk_ids": crowded_topk_ids(tokens, num_experts, top_k)}

    return {
        "one_token": lambda: make_inputs(1, num_experts, top_k),
        "ragged_tail": lambda: make_inputs(37, num_experts, top_k),
        "whole_blocks": lambda: crowded(128),
        "one_over_a_block": lambda: crowded(129),
        "one_under_a_block": lambda: crowded(127),
    }
