"""Semantic work of gated_delta_rule_update.

Per token and head 7 K V operations on the state: one for the decay, two each to recall, to write and to read out.
In chunked form these are matrix products (of somewhat more operations than the step form has), so they count as matrix
work; 3 K + 2 operations to normalise and gate are vector work. Of the state pool only the rows that sequences name are
read and written, in place; the published figure counts the whole pool.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    batch, tokens, q_heads, heads, key, value = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim")
    )
    rows = 4 * (batch - input_kwargs.get("padding", 0)) * heads * key * value
    steps = batch * tokens * heads
    return Work(
        flops={"matrix": {"bf16": steps * 7 * key * value}, "vector": {"fp32": steps * (3 * key + 2)}},
        bytes_read=4 * heads
        + 2 * heads
        + 2 * 2 * steps
        + 2 * 2 * batch * tokens * q_heads * key
        + 2 * steps * value
        + rows
        + 4 * batch,
        bytes_written=2 * steps * value + rows,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release reads and writes every state of the pool."""
    ours = work(init_kwargs, input_kwargs)
    batch, heads, key, value, states = (
        input_kwargs[name] for name in ("batch_size", "num_v_heads", "key_dim", "value_dim", "state_count")
    )
    untouched = 4 * (states - batch) * heads * key * value
    return ours.total_flops, ours.bytes_read + untouched, ours.bytes_written + untouched
