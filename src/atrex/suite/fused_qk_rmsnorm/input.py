"""Inputs of fused_qk_rmsnorm: heads of different scale and distribution, weights that are not one and not the same."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows, norm_weight

Inputs = dict[str, torch.Tensor]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def make_inputs(num_tokens: int, head_num: int, kv_head_num: int, size_per_head: int, dtype: str) -> Inputs:
    """hidden_states [num_tokens, (head_num + 2 kv_head_num) * size_per_head], q_weight and k_weight [size_per_head].

    v lies near the scale of the normalised heads: a row is judged as a whole, and a large v would hide errors in q.
    """
    normed, kind = head_num + kv_head_num, DTYPES[dtype]
    qk = mixed_rows(num_tokens * normed, size_per_head, kind).view(num_tokens, normed * size_per_head)
    v = mixed_rows(num_tokens * kv_head_num, size_per_head, kind, octaves=0.5)
    return {
        "hidden_states": torch.cat([qk, v.view(num_tokens, kv_head_num * size_per_head)], dim=1),
        "q_weight": norm_weight(size_per_head, kind),
        "k_weight": norm_weight(size_per_head, kind),
    }


def corner_cases(
    num_tokens: int, head_num: int, kv_head_num: int, size_per_head: int, dtype: str
) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, heads so small that eps matters (one all zero), heads whose squares overflow fp16."""
    q_end = head_num * size_per_head
    k_end = q_end + kv_head_num * size_per_head

    def drawn(tokens: int, factor: float = 1.0) -> Inputs:
        inputs = make_inputs(tokens, head_num, kv_head_num, size_per_head, dtype)
        inputs["hidden_states"][:, :k_end] *= factor
        return inputs

    def small_heads() -> Inputs:
        inputs = drawn(5, 2.0**-10)
        inputs["hidden_states"][2, q_end - size_per_head : q_end] = 0
        return inputs

    return {
        "one_token": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "small_heads": small_heads,
        "large_heads": lambda: drawn(5, 2.0**6),
    }
