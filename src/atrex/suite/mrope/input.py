"""Inputs of mrope: positions that differ along the three axes and are large enough to turn every frequency."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]

BASE = 10000.0
FURTHEST = 32768  # at BASE the slowest frequency turns by more than a radian over it


def make_inputs(
    token_count: int,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    rotary_dim: int,
    furthest: int = FURTHEST,
    text: bool = False,
) -> Inputs:
    """q [token_count, num_query_heads * head_size], k [token_count, num_kv_heads * head_size] bf16;
    cos, sin [3, token_count, rotary_dim / 2] fp32 of positions below `furthest`, with `text` equal on all axes.
    """
    positions = torch.randint(furthest, (1 if text else 3, token_count, 1)).expand(3, token_count, 1)
    exponent = torch.arange(rotary_dim // 2) * (-2.0 / rotary_dim)
    angle = positions * torch.pow(BASE, exponent)
    return {
        "q": mixed_rows(token_count, num_query_heads * head_size, torch.bfloat16, octaves=2.0),
        "k": mixed_rows(token_count, num_kv_heads * head_size, torch.bfloat16, octaves=2.0),
        "cos": angle.cos(),
        "sin": angle.sin(),
    }


def corner_cases(
    token_count: int, num_query_heads: int, num_kv_heads: int, head_size: int, rotary_dim: int
) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, text (equal positions on all axes), the first positions, large values."""

    def drawn(tokens: int, factor: float = 1.0, **positions: int) -> Inputs:
        inputs = make_inputs(tokens, num_query_heads, num_kv_heads, head_size, rotary_dim, **positions)
        inputs["q"].mul_(factor)
        inputs["k"].mul_(factor)
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "text": lambda: drawn(16, text=True),
        "first_positions": lambda: drawn(16, furthest=4),
        "large_values": lambda: drawn(16, 2.0**40),
    }
