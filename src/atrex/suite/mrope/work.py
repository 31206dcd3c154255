"""Semantic work of mrope: six operations per rotated pair, and one cosine and one sine a token and frequency.

The published figure reads the rows of all three axes (1.1 times as much); each frequency uses one of them.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, heads, kv_heads, size, rotary = (
        input_kwargs[name] for name in ("token_count", "num_query_heads", "num_kv_heads", "head_size", "rotary_dim")
    )
    elements = tokens * (heads + kv_heads) * size
    return Work(
        flops={"vector": {"fp32": 6 * tokens * (heads + kv_heads) * (rotary // 2)}},
        bytes_read=2 * elements + 2 * 4 * tokens * (rotary // 2),
        bytes_written=2 * elements,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release reads the cosines and sines of all three axes."""
    ours = work(init_kwargs, input_kwargs)
    unused = 2 * 2 * 4 * input_kwargs["token_count"] * (input_kwargs["rotary_dim"] // 2)
    return ours.total_flops, ours.bytes_read + unused, ours.bytes_written
