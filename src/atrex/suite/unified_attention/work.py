"""Semantic work of unified_attention: the two products over the tokens that each query sees.

Reads count each token of a sequence and each of its block table's entries once.
"""

from atrex.roofline.work import Work
from atrex.suite.lengths import expand


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    new = expand(input_kwargs["seq_lens"])
    old = expand(input_kwargs["context_lens"]) if "context_lens" in input_kwargs else [0] * len(new)
    heads, kv_heads, size, page = (
        input_kwargs[name] for name in ("num_query_heads", "num_kv_heads", "head_size", "block_size")
    )
    seen = sum(n * c + n * (n + 1) // 2 for n, c in zip(new, old, strict=True))
    queries, tokens = sum(new) * heads * size, (sum(new) + sum(old)) * kv_heads * size
    entries = sum(-(-(n + c) // page) for n, c in zip(new, old, strict=True))
    return Work(
        flops={"matrix": {"bf16": 4 * heads * size * seen}},
        bytes_read=2 * queries + 2 * 2 * tokens + 4 * (2 * len(new) + 1) + 4 * entries,
        bytes_written=2 * queries,
    )
