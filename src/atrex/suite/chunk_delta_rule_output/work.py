"""Semantic work of chunk_delta_rule_output: what the tokens that there are have to do with the ones before them.

Three matrix products a chunk and head: queries with the state, and for each pair j <= i of the chunk's n tokens, of
which there are n (n + 1) / 2, queries with keys and scores with values. Vector work is two operations a pair for the
decay between its tokens, and three an output for scale, decay and sum.

The published figure counts whole squares of scores, and a last chunk that is not full as if it were: a kernel that
skips the upper triangle does less.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    batch, tokens, q_heads, heads, key, value, chunk = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim", "chunk_size")
    )
    full, rest = divmod(tokens, chunk)
    pairs = (full * chunk * (chunk + 1) + rest * (rest + 1)) // 2
    rows, states = batch * heads, batch * heads * -(-tokens // chunk)
    return Work(
        flops={
            "matrix": {"bf16": rows * 2 * (tokens * key * value + pairs * (key + value))},
            "vector": {"fp32": rows * (3 * tokens * value + 2 * pairs)},
        },
        bytes_read=2 * 2 * batch * tokens * q_heads * key
        + 2 * batch * tokens * heads * value
        + 2 * states * key * value
        + 4 * batch * tokens * heads,
        bytes_written=2 * batch * tokens * heads * value,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release counts every chunk full, and scores in whole squares."""
    ours = work(init_kwargs, input_kwargs)
    batch, tokens, heads, key, value, chunk = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_v_heads", "key_dim", "value_dim", "chunk_size")
    )
    states = batch * heads * -(-tokens // chunk)
    square = key * value + chunk * key + chunk * value + chunk
    return states * chunk * (2 * square + 3 * value), ours.bytes_read, ours.bytes_written
