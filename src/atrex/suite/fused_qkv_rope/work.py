"""Semantic work of fused_qkv_rope.

Three operations per rotated element, and the angles: rope_dim frequencies and half as many products a token. A bias
adds one operation an element. All of it is elementwise, so vector work.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, heads, kv_heads, size = (
        input_kwargs[name] for name in ("total_tokens", "num_heads", "num_kv_heads", "head_dim")
    )
    rotary = init_kwargs["rope_dim"]
    packed = (heads + 2 * kv_heads) * size
    biased = packed if input_kwargs.get("bias") else 0
    rotation = tokens * (heads + kv_heads) * 3 * rotary + tokens * rotary // 2 + rotary
    return Work(
        flops={"vector": {"fp32": rotation + tokens * biased}},
        bytes_read=2 * tokens * packed + 2 * biased + 4 * tokens,
        bytes_written=2 * tokens * packed,
    )
