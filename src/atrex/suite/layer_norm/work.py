"""Semantic work of layer_norm: every element read and written once; seven operations an element."""

import math

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    shape = input_kwargs["shape"]
    elements = math.prod(shape)
    return Work(
        flops={"vector": {"fp32": 7 * elements}},
        bytes_read=2 * elements + 2 * 2 * shape[-1],
        bytes_written=2 * elements,
    )
