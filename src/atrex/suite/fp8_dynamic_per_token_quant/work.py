"""Semantic work of fp8_dynamic_per_token_quant: one operation an element and one a row, a scale a row written."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden = input_kwargs["token_count"], input_kwargs["hidden_size"]
    return Work(
        flops={"vector": {"fp32": tokens * (hidden + 1)}},
        bytes_read=2 * tokens * hidden,
        bytes_written=tokens * hidden + 4 * tokens,
    )
