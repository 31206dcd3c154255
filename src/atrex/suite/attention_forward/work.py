"""Semantic work of attention_forward: the two products of every sequence with itself."""

from atrex.roofline.work import Work
from atrex.suite.lengths import expand


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    lengths, heads, size = expand(input_kwargs["seq_lens"]), input_kwargs["num_heads"], input_kwargs["head_dim"]
    elements = sum(lengths) * heads * size
    return Work(
        flops={"matrix": {"bf16": 4 * heads * size * sum(n * n for n in lengths)}},
        bytes_read=3 * 2 * elements + 2 * 4 * (len(lengths) + 1),
        bytes_written=2 * elements,
    )
