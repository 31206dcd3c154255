"""Semantic work of fused_moe.

A slot (a token at one of its experts) costs 6 H I operations in matrix products, 5 I for silu(gate) * up and H for its
weight. The weights of those experts that get any slot are read once: how many, and that a row's experts are distinct,
input.py makes sure of. The published figure counts the slots that one random draw with repetitions left distinct (7 to
2 % fewer) and 2 k - 1 operations a token and expert to merge the repeated ones, which distinct experts do not need.
"""

from atrex.roofline.work import Work
from atrex.suite.experts import active_experts

# Slots that were left distinct by the published draw of each (tokens, hidden, inner): they give its FLOPs exactly.
DRAWN = {
    (135, 2048, 2048): 246,
    (277, 2048, 2048): 524,
    (668, 2048, 2048): 1264,
    (1023, 2048, 2048): 1924,
    (1979, 2048, 2048): 3724,
    (4195, 2048, 2048): 7871,
    (7689, 2048, 2048): 14389,
    (15809, 2048, 2048): 29596,
    (1, 2048, 768): 8,
    (2400, 2048, 768): 18651,
    (4195, 2048, 768): 32637,
    (8192, 2048, 768): 63793,
    (15809, 2048, 768): 123047,
    (25632, 2048, 768): 199534,
    (45936, 2048, 768): 357673,
    (520, 4096, 384): 4054,
    (1019, 4096, 384): 7947,
    (2044, 4096, 384): 15916,
    (3936, 4096, 384): 30658,
    (8192, 4096, 384): 63732,
    (4098, 4096, 4096): 7699,
    (8179, 4096, 4096): 15324,
    (15381, 4096, 4096): 28841,
}


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


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release counts the distinct slots of one draw, and merges the repeated ones of every token and expert."""
    ours = work(init_kwargs, input_kwargs)
    tokens, hidden, inner, experts, top_k = (
        input_kwargs[name] for name in ("token_count", "hidden_size", "intermediate_size", "num_experts", "top_k")
    )
    slots = DRAWN[tokens, hidden, inner]
    merging = tokens * active_experts(tokens, experts, top_k) * (2 * top_k - 1)
    return slots * (6 * hidden * inner + 5 * inner + hidden) + merging, ours.bytes_read, ours.bytes_written
