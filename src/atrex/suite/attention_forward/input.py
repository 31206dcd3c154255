"""Inputs of attention_forward: sequences in drawn order, attention that prefers some keys.

Values have no mean: one would stand above what single keys add to a long sequence, and lost keys would not show.
"""

from collections.abc import Callable

import torch

from atrex.suite.lengths import Lengths, expand

Inputs = dict[str, torch.Tensor]

LARGE_LOGIT = 120.0  # the exponential overflows float32 at 89


def make_inputs(num_heads: int, head_dim: int, seq_lens: Lengths, key_lens: Lengths | None = None) -> Inputs:
    """q [N, num_heads, head_dim], k, v [M, num_heads, head_dim] bf16, cu_seqlens_q, cu_seqlens_k [S + 1] int32; N sums
    the S lengths of `seq_lens`, M those of `key_lens` (default: the same ones).

    The seed permutes the sequences. Queries differ in temperature, so that some attend to few keys, some to many.
    """
    queries = torch.tensor(expand(seq_lens))
    keys = queries if key_lens is None else torch.tensor(expand(key_lens))
    order = torch.randperm(len(queries))
    shape, there = ((int(lengths.sum()), num_heads, head_dim) for lengths in (queries, keys))
    temperature = torch.empty(*shape[:2], 1).uniform_(-0.5, 0.5).exp2_().to(torch.bfloat16)
    return {
        "q": torch.randn(shape, dtype=torch.bfloat16).mul_(temperature),
        "k": torch.randn(there, dtype=torch.bfloat16),
        "v": torch.randn(there, dtype=torch.bfloat16),
        "cu_seqlens_q": _bounds(queries[order]),
        "cu_seqlens_k": _bounds(keys[order]),
    }


def corner_cases(
    num_heads: int, head_dim: int, seq_lens: Lengths, key_lens: Lengths | None = None
) -> dict[str, Callable[[], Inputs]]:
    """Sequences of one token, around a block of 64, one long, some empty; more keys than queries, as a chunk of a
    prompt has behind its prefix, and fewer; logits whose exponential overflows.
    """

    def drawn(lengths: list[int], keys: list[int] | None = None) -> Inputs:
        return make_inputs(num_heads, head_dim, lengths, keys)

    def large_logits() -> Inputs:
        inputs = drawn([37, 16])
        for name in ("q", "k"):
            inputs[name][..., -1] = (LARGE_LOGIT * head_dim**0.5) ** 0.5
        return inputs

    return {
        "one_token": lambda: drawn([1, 1, 1]),
        "block_boundary": lambda: drawn([63, 64, 65, 129]),
        "one_long": lambda: drawn([1, 333, 2]),
        "empty_sequence": lambda: drawn([0, 37, 0, 5]),
        "more_keys": lambda: drawn([5, 37, 64], [70, 37, 193]),
        "fewer_keys": lambda: drawn([65, 3, 20], [7, 3, 64]),
        "large_logits": large_logits,
    }


def _bounds(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
