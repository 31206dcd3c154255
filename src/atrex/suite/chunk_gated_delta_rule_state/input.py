"""Inputs of chunk_gated_delta_rule_state: w and u of real keys, values, gates and step sizes, and a row of the pool."""

from collections.abc import Callable

import torch

from atrex.suite.delta import corrected, directions, log_decays, state_rows, token_values, within_chunks

Inputs = dict[str, torch.Tensor]

CHUNK = 64  # of every shape


def make_inputs(
    batch_size: int,
    token_count: int,
    num_k_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    state_count: int,
    pace: float = 1.0,
) -> Inputs:
    """k [B, T, k_heads, K], w [B, T, heads, K], u [B, T, heads, V] bf16, g [B, T, heads] fp32, initial_state
    [state_count, heads, K, V] fp32, initial_state_indices [B] int32.

    w and u belong together with k and g, as the step before computes them: with w drawn by itself the state would grow
    without bound. `pace` scales the log decays.
    """
    k = directions(batch_size, token_count, num_k_heads, key_dim)
    v = token_values(batch_size, token_count, num_v_heads, value_dim)
    beta = torch.randn(batch_size, token_count, num_v_heads).sigmoid_()
    g = within_chunks(pace * log_decays(batch_size, token_count, num_v_heads), CHUNK)
    w, u = corrected(k, v, beta, g, CHUNK)
    state = torch.randn(state_count, num_v_heads, key_dim, value_dim)
    return {
        "k": k,
        "w": w,
        "u": u,
        "g": g,
        "initial_state": state.mul_(torch.empty(state_count, num_v_heads, 1, 1).uniform_(-1.0, 1.0).exp2_()),
        "initial_state_indices": state_rows(batch_size, state_count),
    }


def corner_cases(
    batch_size: int,
    token_count: int,
    num_k_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    state_count: int,
) -> dict[str, Callable[[], Inputs]]:
    """One token, a token past a chunk, every row of a small pool in use, gates without decay and with total decay."""

    def drawn(tokens: int, sequences: int = 1, pool: int = 4, pace: float = 1.0) -> Inputs:
        return make_inputs(sequences, tokens, num_k_heads, num_v_heads, key_dim, value_dim, pool, pace)

    return {
        "one_token": lambda: drawn(1),
        "past_a_chunk": lambda: drawn(CHUNK + 1),
        "whole_pool": lambda: drawn(CHUNK + 37, sequences=3, pool=3),
        "no_decay": lambda: drawn(4 * CHUNK, pace=0.0),
        "steep_decay": lambda: drawn(CHUNK + 5, pace=256.0),
    }
