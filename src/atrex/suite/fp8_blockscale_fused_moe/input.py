"""Inputs of fp8_blockscale_fused_moe: quantized from mixed rows, each block and expert at a magnitude of its own."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows, row_scales
from atrex.suite.routing import crowded_topk_ids, draw_topk_ids, draw_topk_weights

Inputs = dict[str, torch.Tensor]

BLOCK = 128
LARGEST = 240.0  # of the e4m3fnuz encoding, so that every value exists in e4m3fn and e4m3fnuz alike


def make_inputs(
    token_count: int,
    hidden_size: int,
    intermediate_size: int,
    num_experts: int,
    top_k: int,
    crowded: bool = False,
    same_sign: bool = False,
) -> Inputs:
    """hidden_states [T, H], w1 [E, 2 I, H], w2 [E, H, I] fp8_e4m3; topk_weights fp32, topk_ids int32 [T, k];
    a_scale [T, H/128], fc1_scale [E, 2 I/128, H/128], fc2_scale [E, H/128, I/128] fp32, positive.

    Gates have a standard deviation of about 0.5 to 4 by token, so silu is anywhere between linear and a step. With
    `crowded` all tokens go to the same experts; with `same_sign` all codes are positive.
    """
    rows = mixed_rows(token_count, hidden_size, torch.float32, octaves=1.5)
    hidden, a_scale = _quantized(rows.abs_() if same_sign else rows, 1)
    w1, fc1_scale = _experts(num_experts, 2 * intermediate_size, hidden_size, same_sign)
    w2, fc2_scale = _experts(num_experts, hidden_size, intermediate_size, same_sign)
    route = crowded_topk_ids if crowded else draw_topk_ids
    return {
        "hidden_states": hidden,
        "w1": w1,
        "w2": w2,
        "topk_weights": draw_topk_weights(token_count, top_k),
        "topk_ids": route(token_count, num_experts, top_k),
        "a_scale": a_scale,
        "fc1_scale": fc1_scale,
        "fc2_scale": fc2_scale,
    }


def corner_cases(
    token_count: int, hidden_size: int, intermediate_size: int, num_experts: int, top_k: int
) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, experts that get everything while others are empty, sums that grow with their length
    (operands of one sign), gates so large that silu is a step and the outputs leave fp8's range, tiny scales.
    """

    def drawn(tokens: int, factor: float = 1.0, **kind: bool) -> Inputs:
        inputs = make_inputs(tokens, hidden_size, intermediate_size, num_experts, top_k, **kind)
        inputs["a_scale"].mul_(factor)
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "crowded": lambda: drawn(33, crowded=True),
        "same_sign": lambda: drawn(16, same_sign=True),
        "large": lambda: drawn(16, 2.0**10),
        "small": lambda: drawn(16, 2.0**-10),
    }


def _experts(experts: int, rows: int, cols: int, same_sign: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """[experts, rows, cols] fp8 and scales [experts, rows/128, cols/128]; an expert at a time bounds the fp32 copy."""
    codes = torch.empty(experts, rows, cols, dtype=torch.float8_e4m3fn)
    scales = torch.empty(experts, rows // BLOCK, cols // BLOCK)
    for code, scale in zip(codes, scales, strict=True):
        values = torch.randn(rows, cols)
        quantized = _quantized(values.abs_() if same_sign else values, BLOCK)
        code.copy_(quantized[0])
        scale.copy_(quantized[1])
    return codes, scales.mul_(row_scales(experts, octaves=0.25)[:, :, None] * cols**-0.5)


def _quantized(values: torch.Tensor, group_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales; a scale is what fits the block, times a factor in 0.7 to 1.4, so that it cannot be guessed."""
    rows, cols = values.shape
    blocks = values.view(rows // group_rows, group_rows, cols // BLOCK, BLOCK)
    scales = blocks.abs().amax(dim=(1, 3)).div_(LARGEST)
    blocks.div_(scales[:, None, :, None])
    spread = torch.empty_like(scales).uniform_(-0.5, 0.5).exp2_()
    return values.clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales.mul_(spread)
