"""Inputs of chunk_delta_rule_output: real cumulative gates, and states and values that weigh alike in the result."""

from collections.abc import Callable

import torch

from atrex.suite.delta import directions, log_decays, token_values, within_chunks

Inputs = dict[str, torch.Tensor]


def make_inputs(
    batch_size: int,
    token_count: int,
    num_q_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    chunk_size: int,
    pace: float = 1.0,
) -> Inputs:
    """q, k [B, T, q_heads, K], v [B, T, heads, V], h [B, chunks, heads, K, V] bf16; g [B, T, heads] fp32.

    Queries and keys have length one, as the model normalises them; g falls inside each chunk from near zero, by up to
    `pace` times 32 in heads that forget at once and 1/4 in those that remember.
    """
    chunks = -(-token_count // chunk_size)
    state = torch.randn(batch_size, chunks, num_v_heads, key_dim, value_dim, dtype=torch.bfloat16)
    state.mul_(torch.empty(batch_size, chunks, num_v_heads, 1, 1).uniform_(1.0, 4.0).exp2_().to(torch.bfloat16))
    return {
        "q": directions(batch_size, token_count, num_q_heads, key_dim),
        "k": directions(batch_size, token_count, num_q_heads, key_dim),
        "v": token_values(batch_size, token_count, num_v_heads, value_dim).mul_(8.0),
        "h": state,
        "g": within_chunks(pace * log_decays(batch_size, token_count, num_v_heads), chunk_size),
    }


def corner_cases(
    batch_size: int,
    token_count: int,
    num_q_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    chunk_size: int,
) -> dict[str, Callable[[], Inputs]]:
    """One token, a token past a chunk, two sequences, gates without decay, gates whose exponential underflows."""

    def drawn(tokens: int, sequences: int = 1, pace: float = 1.0) -> Inputs:
        return make_inputs(sequences, tokens, num_q_heads, num_v_heads, key_dim, value_dim, chunk_size, pace)

    return {
        "one_token": lambda: drawn(1),
        "past_a_chunk": lambda: drawn(chunk_size + 1),
        "two_sequences": lambda: drawn(chunk_size + 5, sequences=2),
        "no_decay": lambda: drawn(chunk_size, pace=0.0),
        "steep_decay": lambda: drawn(chunk_size, pace=256.0),
    }
