"""Semantic work of l2_norm: every element read and written once; square, add and scale of every element."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    elements = input_kwargs["num_tokens"] * input_kwargs["hidden_size"]
    return Work(flops={"vector": {"fp32": 3 * elements}}, bytes_read=2 * elements, bytes_written=2 * elements)
