"""Inputs of fused_qkv_rope: positions far from zero, heads of many scales, a bias about as large as they are."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]

FURTHEST = 16384  # positions are below it and above FURTHEST // 8, so that the slowest frequencies turn too


def make_inputs(
    total_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: str, bias: bool = False
) -> Inputs:
    """qkv [total_tokens, (heads + 2 kv_heads) * head_dim] in `dtype`, positions [total_tokens] int32, and with `bias`
    qkv_bias [(heads + 2 kv_heads) * head_dim] in `dtype`.

    Positions run on within a sequence and jump between sequences, eight of them here.
    """
    floating = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    packed = (num_heads + 2 * num_kv_heads) * head_dim
    starts = torch.randint(FURTHEST // 8, FURTHEST, (8,))
    token = torch.arange(total_tokens)
    positions = starts[token % 8] - token // 8 % (FURTHEST // 8)
    inputs = {
        "qkv": mixed_rows(total_tokens, packed, floating, octaves=2.0),
        "positions": positions[torch.randperm(total_tokens)].clamp_(min=1).to(torch.int32),
    }
    if bias:
        inputs["qkv_bias"] = torch.randn(packed, dtype=floating)
    return inputs


def corner_cases(
    total_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: str, bias: bool = False
) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, positions from 0 on, equal positions, the end of a context of 32k, large values."""

    def drawn(tokens: int, positions: list[int] | None = None, factor: float = 1.0) -> Inputs:
        inputs = make_inputs(tokens, num_heads, num_kv_heads, head_dim, dtype, bias)
        inputs["qkv"].mul_(factor)
        if positions is not None:
            inputs["positions"] = torch.tensor(positions, dtype=torch.int32)
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "first_positions": lambda: drawn(5, [*range(5)]),
        "equal_positions": lambda: drawn(3, [77, 77, 77]),
        "long_context": lambda: drawn(4, [*range(32764, 32768)]),
        "large_values": lambda: drawn(5, factor=2.0**6),
    }
