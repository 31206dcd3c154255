"""Semantic work of chunk_delta_rule_output, as published: every chunk full, scores and their products in whole squares.

Three matrix products a chunk and head: queries with the state, queries with keys, scores with values. Gates, masks and
scales are vector work. A kernel that skips the upper triangle of scores inside a chunk does less of the last two.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    batch, tokens, q_heads, heads, key, value, chunk = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim", "chunk_size")
    )
    states = batch * heads * -(-tokens // chunk)
    return Work(
        flops={
            "matrix": {"bf16": states * 2 * chunk * (key * value + chunk * key + chunk * value)},
            "vector": {"fp32": states * (3 * chunk * value + 2 * chunk * chunk)},
        },
        bytes_read=2 * 2 * batch * tokens * q_heads * key
        + 2 * batch * tokens * heads * value
        + 2 * states * key * value
        + 4 * batch * tokens * heads,
        bytes_written=2 * batch * tokens * heads * value,
    )
