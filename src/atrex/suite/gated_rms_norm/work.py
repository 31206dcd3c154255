"""Semantic work of gated_rms_norm: three operations an element for the norm, five for the gate, and one a row.

Norm before or after the gate makes no difference to the count.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    rows, hidden = input_kwargs["rows"], input_kwargs["hidden_size"]
    return Work(
        flops={"vector": {"fp32": rows * (8 * hidden + 1)}},
        bytes_read=2 * 2 * rows * hidden + 2 * hidden,
        bytes_written=2 * rows * hidden,
    )
