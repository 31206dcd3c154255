"""Semantic work of chunk_gated_delta_rule_state: two matrix products a token and head, decay and correction as vector.

Of the state pool only the rows that sequences name are read and written, in place.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    batch, tokens, k_heads, heads, key, value = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_k_heads", "num_v_heads", "key_dim", "value_dim")
    )
    chunks = -(-tokens // init_kwargs["chunk_size"])
    rows = 4 * batch * heads * key * value
    return Work(
        flops={
            "matrix": {"bf16": batch * heads * 4 * tokens * key * value},
            "vector": {"fp32": batch * heads * (2 * tokens * value + tokens + 2 * chunks * key * value)},
        },
        bytes_read=2 * batch * tokens * (k_heads * key + heads * key + heads * value)
        + 4 * batch * tokens * heads
        + rows
        + 4 * batch,
        bytes_written=2 * batch * chunks * heads * key * value + 2 * batch * tokens * heads * value + rows,
    )
