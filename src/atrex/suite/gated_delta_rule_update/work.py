"""Semantic work of gated_delta_rule_update.

A token has three products with its head's state: to recall, to write and to read out, 6 K V operations in matrix
products, however many tokens are taken side by side. The state is decayed once a sequence at least, K V; token by token
it is as many times, which is the published 7 K V a token, but a kernel in chunks of C tokens does K V / C a token and
some C (2 K + 2 V) inside the chunk: with K = V = 128 and C = 6, 9 % less than published.

Matrix work is charged at the rate of 16-bit operands, as bf16, which holds q, k and v exactly. The state it does not
hold: rounded to bf16 in every product, the result is rejected. But fp16, as fast as bf16 on every chip, keeps the
eleven bits of tf32, and a kernel that rounds all operands to it, with the state accumulated in fp32, is right; a charge
at the tf32 rate would call that kernel impossible.

Padding (sequences that start from zero and keep no state) is asked for its outputs, so what these need is read and
written, and counted in Q and in vector work. Its matrix work is not charged: with no state to recall, T tokens are
T (T + 1) / 2 pairs of some 4 (K + V) operations at most, little for the few tokens of a captured decode batch; leaving
it out keeps the bound low.

3 K + 2 operations to normalise and gate are vector work. Of the state pool only the rows that sequences name are read
and written, in place; the published figure counts the whole pool.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    batch, tokens, q_heads, heads, key, value = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_q_heads", "num_v_heads", "key_dim", "value_dim")
    )
    live = batch - input_kwargs.get("padding", 0)
    rows = 4 * live * heads * key * value
    steps = batch * tokens * heads
    return Work(
        flops={
            "matrix": {"bf16": live * heads * (6 * tokens + 1) * key * value},
            "vector": {"fp32": steps * (3 * key + 2)},
        },
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
    """The release decays the state at every token, and reads and writes every state of the pool."""
    ours = work(init_kwargs, input_kwargs)
    batch, tokens, heads, key, value, states = (
        input_kwargs[name]
        for name in ("batch_size", "token_count", "num_v_heads", "key_dim", "value_dim", "state_count")
    )
    untouched = 4 * (states - batch) * heads * key * value
    flops = batch * tokens * heads * (7 * key * value + 3 * key + 2)
    return flops, ours.bytes_read + untouched, ours.bytes_written + untouched
