"""Inputs of attention_forward: sequences in drawn order, attention that prefers some keys.

Values have no mean: one would stand above what single keys add to a long sequence, and lost keys would not show.
"""

from collections.abc import Callable

import torch

from atrex.suite.lengths import Lengths, expand

Inputs = dict[str, torch.Tensor]

LARGE_LOGIT = 120.0  # the exponential overflows float32 at 89


def make_inputs(num_heads: int, head_dim: int, seq_lens: Lengths) -> Inputs:
    """q, k, v [N, num_heads, head_dim] bf16, cu_seqlens_q, cu_seqlens_k [S + 1] int32; N sums the S lengths.

    The seed permutes the sequences. Queries differ in temperature, so that some attend to few keys, some to many.
    """
    lengths = torch.tensor(expand(seq_lens))
    ends = lengths[torch.randperm(len(lengths))].cumsum(0)
    bounds = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    shape = (int(lengths.sum()), num_heads, head_dim)
    temperature = torch.empty(*shape[:2], 1).uniform_(-0.5, 0.5).exp2_().to(torch.bfloat16)
    return {
        "q": torch.randn(shape, dtype=torch.bfloat16).mul_(temperature),
        "k": torch.randn(shape, dtype=torch.bfloat16),
        "v": torch.randn(shape, dtype=torch.bfloat16),
        "cu_seqlens_q": bounds,
        "cu_seqlens_k": bounds.clone(),
    }


def corner_cases(num_heads: int, head_dim: int, seq_lens: Lengths) -> dict[str, Callable[[], Inputs]]:
    """Sequences of one token, around a block of 64, one long, some empty; logits whose exponential overflows."""

    def drawn(lengths: list[int]) -> Inputs:
        return make_inputs(num_heads, head_dim, lengths)

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
        "large_logits": large_logits,
    }
