"""Semantic work of mla_decode_attention: the two products, each token of the cache read once for both.

The published figure adds nhead * (1 + ctx_len) * d a sequence, d the latent and the rotary width: PyTorch's SDPA scales
queries and keys apart, for every head. Nothing in the meaning needs that (the scale goes into the exponential), and as
a bound it is a quarter too high where contexts are long, so it is left out.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    sequences, context, heads, rank, rotary = (
        input_kwargs[name] for name in ("batch_size", "ctx_len", "nhead", "kv_lora_rank", "qk_rope_head_dim")
    )
    tokens, width = sequences * context, rank + rotary  # the lengths of input.py sum to this
    return Work(
        flops={"matrix": {"bf16": 2 * tokens * heads * (width + rank)}},
        bytes_read=2 * sequences * heads * width + 2 * tokens * width + 4 * sequences,
        bytes_written=2 * sequences * heads * rank,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release scales queries and keys apart, for every head."""
    ours = work(init_kwargs, input_kwargs)
    sequences, context, heads, rank, rotary = (
        input_kwargs[name] for name in ("batch_size", "ctx_len", "nhead", "kv_lora_rank", "qk_rope_head_dim")
    )
    return ours.total_flops + sequences * heads * (1 + context) * (rank + rotary), ours.bytes_read, ours.bytes_written
