"""Inputs of paged_attention_decode: ragged lengths, scattered pages, stale slots that must not be read."""

from collections.abc import Callable

import torch

from atrex.suite.lengths import ragged

Inputs = dict[str, torch.Tensor]

SPARE_PAGES = 16  # pages of the cache that belong to no sequence
PACK_BYTES = 16  # the key cache interleaves this many bytes of a head's vector per slot
STALE = 4.0  # slots outside every sequence are this much larger, so that reading one shows


def make_inputs(
    num_seqs: int,
    ctx_len: int,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    dtype: str,
    exact: list[int] | None = None,
) -> Inputs:
    """query [S, heads, d], k_cache [pages, kv_heads, d/x, block, x], v_cache [pages, kv_heads, d, block] in `dtype`,
    block_tables [S, width] int32, seq_lens [S] int32.

    The seed permutes which sequence has which length and which pages; `exact` replaces the lengths.
    """
    floating = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    given = exact or ragged(num_seqs, ctx_len)
    per_sequence = [-(-length // block_size) for length in given]
    total, width = sum(per_sequence), max(per_sequence)
    pages = total + SPARE_PAGES
    seq_lens = torch.tensor(given)[torch.randperm(len(given))]

    order = torch.randperm(pages)[:total]
    owned = block_size * torch.arange(width) < seq_lens[:, None]
    block_tables = torch.randint(pages, (len(given), width))
    block_tables[owned] = order

    filled = (seq_lens[:, None] - block_size * torch.arange(width)).clamp(max=block_size)[owned]
    stale = torch.full((pages, block_size), STALE)
    stale[order] = torch.where(torch.arange(block_size) < filled[:, None], 1.0, STALE)
    stale = stale.to(floating)

    pack = PACK_BYTES // floating.itemsize
    temperature = torch.empty(len(given), num_query_heads, 1).uniform_(0.0, 1.5).exp2_()
    query = torch.randn(len(given), num_query_heads, head_size) * temperature
    k_cache = torch.randn(pages, num_kv_heads, head_size // pack, block_size, pack, dtype=floating)
    v_cache = torch.randn(pages, num_kv_heads, head_size, block_size, dtype=floating)
    v_cache.add_(0.3 * torch.randn(num_kv_heads, head_size, 1, dtype=floating))
    return {
        "query": query.to(floating),
        "k_cache": k_cache.mul_(stale[:, None, None, :, None]),
        "v_cache": v_cache.mul_(stale[:, None, None, :]),
        "block_tables": block_tables.to(torch.int32),
        "seq_lens": seq_lens.to(torch.int32),
    }


def corner_cases(
    num_seqs: int,
    ctx_len: int,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    dtype: str,
) -> dict[str, Callable[[], Inputs]]:
    """Lengths of one token, of whole pages, of one token past a page; logits that overflow an exponential; NaN in every
    slot outside the sequences.
    """

    def drawn(exact: list[int]) -> Inputs:
        heads = (num_query_heads, num_kv_heads, head_size)
        return make_inputs(len(exact), ctx_len, *heads, block_size, dtype, exact=exact)

    def large_logits() -> Inputs:
        inputs = drawn([block_size * 4, block_size * 3 + 5])
        inputs["query"].mul_(16.0)
        return inputs

    def nan_outside() -> Inputs:
        inputs = drawn([1, block_size - 1, 3 * block_size + 5, 2 * block_size])
        held = torch.zeros(len(inputs["k_cache"]), block_size, dtype=torch.bool)
        for table, used in zip(inputs["block_tables"].long(), inputs["seq_lens"], strict=True):
            token = torch.arange(int(used))
            held[table[token // block_size], token % block_size] = True
        inputs["k_cache"].masked_fill_(~held[:, None, None, :, None], float("nan"))
        inputs["v_cache"].masked_fill_(~held[:, None, None, :], float("nan"))
        return inputs

    return {
        "one_token": lambda: drawn([1, 1, 1]),
        "one_page": lambda: drawn([block_size, block_size]),
        "page_boundary": lambda: drawn([block_size + 1, block_size - 1, 2 * block_size, 4 * block_size + 1]),
        "one_long": lambda: drawn([1, 16 * block_size + 3, 2]),
        "large_logits": large_logits,
        "nan_outside": nan_outside,
    }
