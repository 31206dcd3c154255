"""Semantic work of fused_moe.

A slot (a token at one of its experts) costs 6 H I operations in matrix products, 5 I for silu(gate) * up and H for its
weight. The weights of those experts that get any slot are read once: how many, and that a row's experts are distinct,
input.py makes sure of. The published figure counts the slots that one random draw with repetitions left distinct (7 to
2 % fewer) and 2 k - 1 operations a token and expert to merge the repeated ones, which distinct experts do not need.
"""

from atrex.roofline.work import Work
from atrex.suite.experts import active_experts


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden, inner, experts, top_k = (
        input_kwargs[name] for name in ("token_count", "hidden_size", "intermediate_size", "num_experts", "top_k")
    )
    slots = tokens * top_k
    return Work(
        flops={"matrix": {"bf16": slots * 6 * hidden * inner}, "vector": {"fp32": slots * (5 * inner + hidden)}},
        bytes_read=2 * tokens * hidden + active_experts(tokens, experts, top_k) * 6 * hidden * inner + 8 * slots,
        bytes_written=4 * tokens * hidden,
    )
