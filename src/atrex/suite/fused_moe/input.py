"""Inputs of fused_moe: skewed routing, experts at scales of their own, weights that leave no slot out."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows, row_scales
from atrex.suite.routing import crowded_topk_ids, draw_topk_ids, draw_topk_weights

Inputs = dict[str, torch.Tensor]


def make_inputs(
    token_count: int,
    hidden_size: int,
    intermediate_size: int,
    num_experts: int,
    top_k: int,
    crowded: bool = False,
    same_sign: bool = False,
) -> Inputs:
    """hidden_states [token_count, hidden_size], w1 [num_experts, 2 * intermediate_size, hidden_size],
    w2 [num_experts, hidden_size, intermediate_size] bf16, topk_weights fp32 and topk_ids int32 [token_count, top_k].

    Gates have a standard deviation of about 0.5 to 4 by token, so silu is anywhere between linear and a step. With
    `crowded` all tokens go to the same experts; with `same_sign` all operands are positive.
    """
    hidden = mixed_rows(token_count, hidden_size, torch.bfloat16, octaves=1.5)
    scales = row_scales(num_experts, octaves=0.25).to(torch.bfloat16)[:, :, None]
    w1 = torch.randn(num_experts, 2 * intermediate_size, hidden_size, dtype=torch.bfloat16)
    w2 = torch.randn(num_experts, hidden_size, intermediate_size, dtype=torch.bfloat16)
    if same_sign:
        for tensor in (hidden, w1, w2):
            tensor.abs_()
    route = crowded_topk_ids if crowded else draw_topk_ids
    return {
        "hidden_states": hidden,
        "w1": w1.mul_(scales * hidden_size**-0.5),
        "w2": w2.mul_(scales * intermediate_size**-0.5),
        "topk_weights": draw_topk_weights(token_count, top_k),
        "topk_ids": route(token_count, num_experts, top_k),
    }


def corner_cases(
    token_count: int, hidden_size: int, intermediate_size: int, num_experts: int, top_k: int
) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, experts that get everything while others are empty, sums that grow with their length
    (operands of one sign), gates so large that silu is a step, tokens so small that it is linear.
    """

    def drawn(tokens: int, factor: float = 1.0, **kind: bool) -> Inputs:
        inputs = make_inputs(tokens, hidden_size, intermediate_size, num_experts, top_k, **kind)
        inputs["hidden_states"].mul_(factor)
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "crowded": lambda: drawn(33, crowded=True),
        "same_sign": lambda: drawn(16, same_sign=True),
        "large": lambda: drawn(16, 2.0**10),
        "small": lambda: drawn(16, 2.0**-10),
    }
