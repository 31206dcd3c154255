"""Inputs of topk_filter: flat and peaked rows, and rows with ties at the k-th largest."""

from collections.abc import Callable

import torch

from atrex.suite.draw import row_scales

Inputs = dict[str, torch.Tensor]

GRID = 0.13


def make_inputs(seq_len: int, hidden_size: int) -> Inputs:
    """logits [seq_len, hidden_size] fp32; hidden_size is the vocabulary.

    Rows differ in scale and offset; every second one, from a drawn start, lies on a grid, so that ties at the k-th
    largest are the rule there. No step of that grid is exact in a narrower type.
    """
    logits = torch.randn(seq_len, hidden_size).mul_(row_scales(seq_len, octaves=1.0))
    logits.add_(4 * torch.randn(seq_len, 1))
    tied = logits[int(torch.randint(2, (), device="cpu")) :: 2]
    tied.div_(GRID).round_().mul_(GRID)
    return {"logits": logits}


def corner_cases(seq_len: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """One row, a ragged tail, few distinct values (one row constant), rows mostly masked with -inf, close neighbours.

    `masked`: 3 to 60 finite logits a row, as grammars leave them, so that some rows have fewer than k.
    `close`: sorted neighbours differ in float32's last bits only, so that a narrower type or an epsilon shows.
    """

    def ties() -> Inputs:
        logits = torch.randint(-1, 2, (5, hidden_size)).to(torch.float32)
        logits[2] = 1.5
        logits[3, :7] = 4.0
        return {"logits": logits}

    def masked() -> Inputs:
        logits = make_inputs(5, hidden_size)["logits"]
        order = torch.rand(5, hidden_size).argsort(-1)
        kept = torch.tensor([[3], [49], [50], [51], [60]])
        return {"logits": logits.masked_fill_(order >= kept, -torch.inf)}

    def close() -> Inputs:
        order = torch.rand(5, hidden_size).argsort(-1).to(torch.float32)
        return {"logits": 1 + order * 2.0**-22}

    return {
        "one_row": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(5, hidden_size),
        "ties": ties,
        "masked": masked,
        "close": close,
    }
