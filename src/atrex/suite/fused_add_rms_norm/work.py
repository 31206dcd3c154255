"""Semantic work of fused_add_rms_norm: rms_norm's, one addition an element, and the sum written beside the result."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden = input_kwargs["token_count"], input_kwargs["hidden_size"]
    return Work(
        flops={"vector": {"fp32": tokens * (4 * hidden + 1)}},
        bytes_read=4 * tokens * hidden + 2 * hidden,
        bytes_written=4 * tokens * hidden,
    )
