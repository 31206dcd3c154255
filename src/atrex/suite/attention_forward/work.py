"""Semantic work of attention_forward: the two products of every sequence's queries with its keys and values."""

from atrex.roofline.work import Work
from atrex.suite.lengths import expand


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    queries, heads, size = expand(input_kwargs["seq_lens"]), input_kwargs["num_heads"], input_kwargs["head_dim"]
    keys = expand(input_kwargs["key_lens"]) if "key_lens" in input_kwargs else queries
    row = 2 * heads * size
    return Work(
        flops={"matrix": {"bf16": 4 * heads * size * sum(n * m for n, m in zip(queries, keys, strict=True))}},
        bytes_read=row * (sum(queries) + 2 * sum(keys)) + 2 * 4 * (len(queries) + 1),
        bytes_written=row * sum(queries),
    )
