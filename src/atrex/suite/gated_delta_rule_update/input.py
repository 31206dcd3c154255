"""Inputs of gated_delta_rule_update: gates that forget fast and slowly, states in rows of a pool, padding sequences."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from atrex.suite.delta import state_rows, token_values
from atrex.suite.draw import mixed_rows, row_scales

Inputs = dict[str, torch.Tensor]


def make_inputs(
    batch_size: int,
    token_count: int,
    num_q_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    state_count: int,
    padding: int = 0,
) -> Inputs:
    """A_log [heads] fp32; a [B, T, heads], dt_bias [heads], q, k [B, T, q_heads, K], v [B, T, heads, V],
    b [B, T, heads] bf16; initial_state [state_count, heads, K, V] fp32; initial_state_indices [B] int32.

    A head forgets in about 2 to 64 tokens. `padding` of the sequences have index -1: the seed says which.
    """

    def keys() -> torch.Tensor:
        rows = mixed_rows(batch_size * token_count * num_q_heads, key_dim, torch.bfloat16, octaves=2.0)
        return rows.view(batch_size, token_count, num_q_heads, key_dim)

    indices = torch.full((batch_size,), -1, dtype=torch.int32)
    live = torch.randperm(batch_size)[padding:]
    indices[live] = state_rows(batch_size - padding, state_count)
    state = torch.randn(state_count, num_v_heads, key_dim, value_dim)
    gates = (batch_size, token_count, num_v_heads)
    # A query resembles its own token's key: where they are orthogonal by chance, a head that forgets at once puts out
    # next to nothing, and what is left of terms that cancel says little about a kernel.
    k = keys()
    queries = F.normalize(k.to(torch.float32), dim=-1) + F.normalize(keys().to(torch.float32), dim=-1)
    queries.view(-1, key_dim).mul_(8 * row_scales(batch_size * token_count * num_q_heads, octaves=2.0))
    return {
        "A_log": torch.empty(num_v_heads).uniform_(-3.0, 0.5),
        "a": torch.randn(gates).to(torch.bfloat16),
        "dt_bias": torch.empty(num_v_heads).uniform_(-1.5, 0.5).to(torch.bfloat16),
        "q": queries.to(torch.bfloat16),
        "k": k,
        "v": token_values(*gates, value_dim).mul_(8.0),
        "b": torch.randn(gates).mul_(1.5).to(torch.bfloat16),
        "initial_state": state.mul_(torch.empty(state_count, num_v_heads, 1, 1).uniform_(1.0, 3.0).exp2_()),
        "initial_state_indices": indices,
    }


def corner_cases(
    batch_size: int,
    token_count: int,
    num_q_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    state_count: int,
    padding: int = 0,
) -> dict[str, Callable[[], Inputs]]:
    """One token, more than a chunk, padding, a small pool all in use, gates past softplus's threshold, long memory."""

    def drawn(tokens: int, sequences: int = 1, pool: int = 2, padding: int = 0) -> Inputs:
        heads = (num_q_heads, num_v_heads, key_dim, value_dim)
        return make_inputs(sequences, tokens, *heads, pool, padding)

    def steep() -> Inputs:
        inputs = drawn(5)
        inputs["a"].mul_(32.0)  # on both sides: decay to nothing, and none at all
        return inputs

    def remembered() -> Inputs:
        # Nothing is forgotten and each step is small against the state: kept in bf16, the state would not move.
        inputs = drawn(256)
        inputs["a"].sub_(24.0)
        inputs["b"].sub_(8.0)
        inputs["v"].abs_()
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(67),
        "padding": lambda: drawn(2, sequences=4, pool=5, padding=2),
        "whole_pool": lambda: drawn(1, sequences=3, pool=3),
        "steep_gates": steep,
        "remembered": remembered,
    }
