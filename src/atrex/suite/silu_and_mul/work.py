"""Semantic work of silu_and_mul: five operations an output (negate, exp, add, divide, multiply)."""

import math

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    outputs = math.prod(input_kwargs["shape"]) // 2
    return Work(flops={"vector": {"fp32": 5 * outputs}}, bytes_read=4 * outputs, bytes_written=2 * outputs)
