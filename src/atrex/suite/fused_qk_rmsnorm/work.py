"""Semantic work of fused_qk_rmsnorm: rms_norm's on the q and k heads; v is read and written with them."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, heads, kv_heads, size = (
        input_kwargs[name] for name in ("num_tokens", "head_num", "kv_head_num", "size_per_head")
    )
    packed = 2 * tokens * (heads + 2 * kv_heads) * size
    return Work(
        flops={"vector": {"fp32": tokens * (heads + kv_heads) * (3 * size + 1)}},
        bytes_read=packed + 2 * 2 * size,
        bytes_written=packed,
    )
