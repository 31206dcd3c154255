"""Semantic work of fp8_blockscale_fused_moe.

A slot (a token at one of its experts) costs 6 H I operations in fp8 matrix products, 5 I for silu(gate) * up and 2 H to
weigh and add it; applying the scales of the weights is counted once an element of those experts that get any slot
(3 H I each), which is the published count. Scaling the partial sums of blocks instead takes some 6 H I / 128 a slot,
fewer where an expert gets under 64 slots. No ceiling is higher for the difference: beside bytes and products, vector
work of either count sets none on any listed chip.

The output is bf16, 2 bytes an element; the published one is fp8, which overflows to NaN.
"""

from atrex.roofline.work import Work
from atrex.suite.experts import active_experts

BLOCK = 128


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden, inner, experts, top_k = (
        input_kwargs[name] for name in ("token_count", "hidden_size", "intermediate_size", "num_experts", "top_k")
    )
    slots, active = tokens * top_k, active_experts(tokens, experts, top_k)
    scales = 3 * (hidden // BLOCK) * (inner // BLOCK)
    return Work(
        flops={
            "matrix": {"fp8_e4m3": slots * 6 * hidden * inner},
            "vector": {"fp32": slots * (5 * inner + 2 * hidden) + active * 3 * hidden * inner},
        },
        bytes_read=tokens * hidden
        + 4 * tokens * (hidden // BLOCK)
        + 8 * slots
        + active * (3 * hidden * inner + 4 * scales),
        bytes_written=2 * tokens * hidden,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release writes fp8, one byte an element instead of two."""
    ours = work(init_kwargs, input_kwargs)
    fp8 = input_kwargs["token_count"] * input_kwargs["hidden_size"]
    return ours.total_flops, ours.bytes_read, ours.bytes_written - fp8
