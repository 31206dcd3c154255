"""Semantic work of reshape_and_cache: the rows that are written, once each way, and every slot.

The published figure counts the reads and writes of two whole caches (up to 16 times as much). Padding tokens, of which
only the slot is read, are one in sixteen here and none as published.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, heads, size = input_kwargs["shape"]
    written = tokens - tokens // 16  # the rest are the padding of input.py
    moved = 2 * 2 * written * heads * size
    return Work(bytes_read=moved + 8 * tokens, bytes_written=moved)


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release reads both caches and all rows, and writes both caches."""
    tokens, heads, size = input_kwargs["shape"]
    caches = 2 * 2 * -(-tokens // input_kwargs["block_size"]) * input_kwargs["block_size"] * heads * size
    return 0, 2 * 2 * tokens * heads * size + caches + 8 * tokens, caches
