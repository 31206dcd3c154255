"""Semantic work of paged_attention_decode.

Reads count each token of a sequence once, never the pages that no sequence owns (the published figure counts 16 of
those). The block table counts ceil(ctx_len / page) entries a sequence, which is the published figure and a lower
bound: ragged lengths touch up to one entry (4 bytes) a sequence more.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    sequences, context, heads, kv_heads, size, page = (
        input_kwargs[name]
        for name in ("num_seqs", "ctx_len", "num_query_heads", "num_kv_heads", "head_size", "block_size")
    )
    tokens = sequences * context  # the lengths of input.py sum to this
    return Work(
        flops={"matrix": {input_kwargs["dtype"]: 4 * tokens * heads * size}, "vector": {"fp32": 2 * tokens}},
        bytes_read=2 * sequences * heads * size
        + 2 * 2 * tokens * kv_heads * size
        + 4 * sequences * -(-context // page)
        + 4 * sequences,
        bytes_written=2 * sequences * heads * size,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release counts 16 pages that no sequence owns and nothing reads."""
    ours = work(init_kwargs, input_kwargs)
    page = 2 * 2 * input_kwargs["block_size"] * input_kwargs["num_kv_heads"] * input_kwargs["head_size"]
    return ours.total_flops, ours.bytes_read + 16 * page, ours.bytes_written
