"""Semantic work of moe_topk_gating_softmax: a softmax of 4E - 1 operations a row; comparisons are not counted."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, experts = input_kwargs["token_count"], input_kwargs["num_experts"]
    return Work(
        flops={"vector": {"fp32": tokens * (4 * experts - 1)}},
        bytes_read=4 * tokens * experts,
        bytes_written=8 * tokens * init_kwargs["top_k"],
    )
