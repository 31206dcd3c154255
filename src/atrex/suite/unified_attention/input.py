"""Inputs of unified_attention: scattered pages, stale slots that must not be read, sequences in drawn order.

Values have no mean: one would stand above what single tokens add to a long context, and lost tokens would not show.
"""

from collections.abc import Callable

import torch

from atrex.suite.lengths import Lengths, expand

Inputs = dict[str, torch.Tensor]

SPARE_PAGES = 16  # pages of the cache that belong to no sequence
STALE = 4.0  # slots outside every sequence are this much larger, so that reading one shows
LARGE_LOGIT = 120.0  # the exponential overflows float32 at 89


def make_inputs(
    num_seqs: int,
    seq_lens: Lengths,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    context_lens: Lengths | None = None,
) -> Inputs:
    """q [N, num_query_heads, head_size] bf16, k_cache, v_cache [pages, block_size, num_kv_heads, head_size] bf16,
    cu_seqlens_q [S + 1], seqused_k [S], block_table [S, width] int32.

    `seq_lens` are the new tokens of each sequence, N in sum; `context_lens` those that its cache held before (default:
    none). The seed permutes sequences and pages. Queries differ in temperature, so that some attend to few tokens.
    """
    new = torch.tensor(expand(seq_lens))
    old = torch.tensor(expand(context_lens)) if context_lens is not None else torch.zeros_like(new)
    order = torch.randperm(num_seqs)
    new, used = new[order], (new + old)[order]
    per_sequence = -(-used // block_size)
    total, width = int(per_sequence.sum()), int(per_sequence.max())
    pages = total + SPARE_PAGES

    scattered = torch.randperm(pages)[:total]
    owned = torch.arange(width) < per_sequence[:, None]
    block_table = torch.randint(pages, (num_seqs, width))
    block_table[owned] = scattered
    filled = (used[:, None] - block_size * torch.arange(width)).clamp(max=block_size)[owned]
    stale = torch.full((pages, block_size), STALE, dtype=torch.bfloat16)
    stale[scattered] = torch.where(torch.arange(block_size) < filled[:, None], 1.0, STALE).to(torch.bfloat16)
    stale = stale[:, :, None, None]

    queries, cached = (int(new.sum()), num_query_heads), (pages, block_size, num_kv_heads, head_size)
    temperature = torch.empty(*queries, 1).uniform_(-0.5, 0.5).exp2_().to(torch.bfloat16)
    return {
        "q": torch.randn(*queries, head_size, dtype=torch.bfloat16).mul_(temperature),
        "k_cache": torch.randn(cached, dtype=torch.bfloat16).mul_(stale),
        "v_cache": torch.randn(cached, dtype=torch.bfloat16).mul_(stale),
        "cu_seqlens_q": torch.cat([new.new_zeros(1), new.cumsum(0)]).to(torch.int32),
        "seqused_k": used.to(torch.int32),
        "block_table": block_table.to(torch.int32),
    }


def corner_cases(
    num_seqs: int,
    seq_lens: Lengths,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    context_lens: Lengths | None = None,
) -> dict[str, Callable[[], Inputs]]:
    """One token; ragged prompts; decoding; all kinds in one batch; whole pages; logits whose exponential overflows; NaN
    in every slot outside the sequences; queries after the last sequence's, as a batch padded for a captured graph has.
    """

    def drawn(new: list[int], old: list[int]) -> Inputs:
        return make_inputs(len(new), new, num_query_heads, num_kv_heads, head_size, block_size, old)

    def large_logits() -> Inputs:
        inputs = drawn([5, 37], [40, 0])
        for name in ("q", "k_cache"):
            inputs[name][..., -1] = (LARGE_LOGIT * head_size**0.5) ** 0.5
        return inputs

    def nan_outside() -> Inputs:
        inputs = drawn([1, 21, 1, page + 1], [70, 0, 3, 2 * page + 3])
        held = torch.zeros(inputs["k_cache"].shape[:2], dtype=torch.bool)
        for table, used in zip(inputs["block_table"].long(), inputs["seqused_k"], strict=True):
            token = torch.arange(int(used))
            held[table[token // page], token % page] = True
        for name in ("k_cache", "v_cache"):
            inputs[name][~held] = float("nan")
        return inputs

    def queries_of_no_sequence() -> Inputs:
        inputs = drawn([1, 7, 1], [30, 0, page])
        return {**inputs, "q": torch.cat([inputs["q"], inputs["q"].flip(0)])}

    page = block_size
    return {
        "one_token": lambda: drawn([1, 1], [0, 0]),
        "ragged_prompts": lambda: drawn([37, 1, page - 1, 2 * page + 1], [0, 0, 0, 0]),
        "decoding": lambda: drawn([1, 1, 1, 1], [0, page - 1, page, 16 * page + 5]),
        "mixed": lambda: drawn([1, 21, 1, page], [70, 0, 3, 2 * page + 3]),
        "whole_pages": lambda: drawn([page, 2 * page], [page, 0]),
        "large_logits": large_logits,
        "nan_outside": nan_outside,
        "queries_of_no_sequence": queries_of_no_sequence,
    }
