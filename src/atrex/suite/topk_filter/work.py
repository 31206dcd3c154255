"""Semantic work of topk_filter: every logit is read and written once; comparisons are no FLOPs."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    total = 4 * input_kwargs["seq_len"] * input_kwargs["hidden_size"]
    return Work(flops={"vector": {"fp32": 0}}, bytes_read=total, bytes_written=total)
