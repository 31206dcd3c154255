"""Inputs of attention_forward: sequences in drawn order, attention that prefers some keys, values with a mean."""

from collections.abc import Callable

import torch

from atrex.suite.lengths import Lengths, expand

Inputs = dict[str, torch.Tensor]


def make_inputs(num_heads: int, head_dim: int, seq_lens: Lengths) -> Inputs:
    """q, k, v [N, num_heads, head_dim] bf16, cu_seqlens_q, cu_seqlens_k [S + 1] int32; N sums the S lengths.

    The seed permutes the sequences. Queries differ in temperature, so that some attend to few keys, some to many.
    """
    lengths = torch.tensor(expand(seq_lens))
    ends = lengths[torch.randperm(len(lengths))].cumsum(0)
    bounds = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    shape = (int(lengths.sum()), num_heads, head_dim)
    temperature = torch.empty(*shape[:2], 1).uniform_(0.0, 2.0).exp2_().to(torch.bfloat16)
    return {
        "q": torch.randn(shape, dtype=torch.bfloat16).mul_(temperature),
        "k": torch.randn(shape, dtype=torch.bfloat16),
        "v": torch.randn(shape, dtype=torch.bfloat16).add_(0.3 * torch.randn(shape[1:], dtype=torch.bfloat16)),
        "cu_seqlens_q": bounds,
        "cu_seqlens_k": bounds.clone(),
    }


def corner_cases(num_heads: int, head_dim: int, seq_lens: Lengths) -> dict[str, Callable[[], Inputs]]:
    """Sequences of one token, around a block of 64, one long among short ones, none; logits that overflow."""

    def drawn(lengths: list[int], factor: float = 1.0) -> Inputs:
        inputs = make_inputs(num_heads, head_dim, lengths)
        inputs["q"].mul_(factor)
        return inputs

    return {
        "one_token": lambda: drawn([1, 1, 1]),
        "block_boundary": lambda: drawn([63, 64, 65, 129]),
        "one_long": lambda: drawn([1, 333, 2]),
        "empty_sequence": lambda: drawn([0, 37, 0, 5]),
        "large_logits": lambda: drawn([37, 16], 16.0),
    }
