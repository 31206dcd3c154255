"""Inputs of linear_sigmoid_mul: gates from nearly closed to nearly open, so that no constant replaces them."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, hidden_size: int, out_features: int, columns: int | None = None) -> Inputs:
    """hidden_states [token_count, hidden_size], weight [out_features, hidden_size], bias [out_features],
    post_mul_mat [token_count, columns] bf16; `columns` is out_features unless one feature gates many.

    Logits have a standard deviation of about 0.7 to 6 by row, and a bias of order one on top.
    """
    hidden = mixed_rows(token_count, hidden_size, torch.bfloat16, octaves=1.5)
    weight = torch.randn(out_features, hidden_size).mul_(2 * hidden_size**-0.5)
    return {
        "hidden_states": hidden,
        "weight": weight.to(torch.bfloat16),
        "bias": torch.randn(out_features).to(torch.bfloat16),
        "post_mul_mat": mixed_rows(token_count, columns or out_features, torch.bfloat16),
    }


def corner_cases(
    token_count: int, hidden_size: int, out_features: int, columns: int | None = None
) -> dict[str, Callable[[], Inputs]]:
    """One token, a ragged tail, logits whose exponential overflows float32, gates closed to 1e-7."""

    def large_logits() -> Inputs:
        inputs = make_inputs(16, hidden_size, out_features, columns)
        inputs["hidden_states"].mul_(128.0)
        return inputs

    def closed_gates() -> Inputs:
        inputs = make_inputs(16, hidden_size, out_features, columns)
        inputs["hidden_states"].mul_(0.25)
        inputs["bias"].sub_(16.0)
        return inputs

    return {
        "one_token": lambda: make_inputs(1, hidden_size, out_features, columns),
        "ragged_tail": lambda: make_inputs(37, hidden_size, out_features, columns),
        "large_logits": large_logits,
        "closed_gates": closed_gates,
    }
