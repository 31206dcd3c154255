"""Semantic work of moe_count_and_sort: no arithmetic; every id read once, every output entry written once."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    slots, experts = input_kwargs["token_count"] * input_kwargs["top_k"], input_kwargs["num_experts"]
    return Work(bytes_read=4 * slots, bytes_written=4 * (slots + 2 * experts + 1))
