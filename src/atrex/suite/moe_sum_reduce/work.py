"""Semantic work of moe_sum_reduce: k - 1 additions and one scaling an output element."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, top_k, hidden = (input_kwargs[name] for name in ("token_count", "top_k", "hidden_size"))
    return Work(
        flops={"vector": {"fp32": tokens * top_k * hidden}},
        bytes_read=2 * tokens * top_k * hidden,
        bytes_written=2 * tokens * hidden,
    )
