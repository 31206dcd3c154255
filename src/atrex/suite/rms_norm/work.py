"""Semantic work of rms_norm: every element read and written once; three operations an element and one a row."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden = input_kwargs["token_count"], input_kwargs["hidden_size"]
    return Work(
        flops={"vector": {"fp32": tokens * (3 * hidden + 1)}},
        bytes_read=2 * tokens * hidden + 2 * hidden,
        bytes_written=2 * tokens * hidden,
    )
