"""Semantic work of per_token_group_quant_fp8: one operation an element and one a group, whose scale is written."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden = input_kwargs["token_count"], input_kwargs["hidden_size"]
    groups = hidden // init_kwargs["group_size"]
    return Work(
        flops={"vector": {"fp32": tokens * (hidden + groups)}},
        bytes_read=2 * tokens * hidden,
        bytes_written=tokens * hidden + 4 * tokens * groups,
    )
