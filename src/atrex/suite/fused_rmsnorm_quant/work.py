"""Semantic work of fused_rmsnorm_quant: fused_add_rms_norm's, one operation an element and one a row to quantize.

Written are the codes, a scale for each row and the sum.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden = input_kwargs["token_count"], input_kwargs["hidden_size"]
    return Work(
        flops={"vector": {"fp32": tokens * (5 * hidden + 2)}},
        bytes_read=4 * tokens * hidden + 2 * hidden,
        bytes_written=tokens * hidden + 4 * tokens + 2 * tokens * hidden,
    )
