"""A skeleton folder for a new operator: it loads, validates and can be edited from there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from atrex.errors import UserError

_REFERENCE = '''\
"""What {operator} computes, in one sentence."""

import torch
from torch import nn


class Model(nn.Module):
    """out = 2 * x + weight.  Replace this by the operator's semantics.

    x [tokens, hidden], weight [hidden] -> out [tokens, hidden], all of one floating dtype. Accumulate in at least
    float32 and take float64 operands, so that the judge gets an oracle.
    """

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        return (2 * x.to(acc) + weight.to(acc)).to(x.dtype)
'''
_INPUT = '''\
"""Inputs of {operator}: no operand may be neutral, or leaving it out would not be noticed."""

from collections.abc import Callable

import torch

Inputs = dict[str, torch.Tensor]


def make_inputs(token_count: int, hidden_size: int) -> Inputs:
    """x [token_count, hidden_size] bf16, weight [hidden_size] bf16. The caller sets seed and device."""
    rows = torch.empty(token_count, 1).uniform_(-2, 2).exp2_()
    x = torch.randn(token_count, hidden_size) * rows
    return {{"x": x.to(torch.bfloat16), "weight": (1 + 0.5 * torch.randn(hidden_size)).to(torch.bfloat16)}}


def corner_cases(token_count: int, hidden_size: int) -> dict[str, Callable[[], Inputs]]:
    """At least three, with few tokens each."""

    def scaled(tokens: int, factor: float) -> Inputs:
        inputs = make_inputs(tokens, hidden_size)
        inputs["x"].mul_(factor)
        return inputs

    return {{
        "one_token": lambda: make_inputs(1, hidden_size),
        "ragged_tail": lambda: make_inputs(37, hidden_size),
        "large_rows": lambda: scaled(16, 2.0**20),
    }}
'''
_WORK = '''\
"""Semantic work of {operator}: what any implementation has to compute and to move."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden = input_kwargs["token_count"], input_kwargs["hidden_size"]
    return Work(
        flops={{"vector": {{"fp32": 2 * tokens * hidden}}}},
        bytes_read=2 * tokens * hidden + 2 * hidden,
        bytes_written=2 * tokens * hidden,
    )
'''


def new_problem(operator: str, parent: Path) -> Path:
    """Write the skeleton of `operator` below `parent` and return its folder. Raises UserError if that cannot be."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", operator):
        raise UserError(f"operator {operator!r}: expected lower-case letters, digits and _, such as rms_norm")
    folder = parent / operator
    if folder.exists():
        raise UserError(f"{folder}: exists already")
    from atrex.problems.generate import generate_roofline

    def shapes(*tokens: int, prefix: str = "") -> dict:
        kwargs = [{"token_count": n, "hidden_size": 256} for n in tokens]
        return {f"{prefix}{i}": {"init_kwargs": {}, "input_kwargs": k} for i, k in enumerate(kwargs)}

    metadata = {
        "operator": operator,
        "phase": "prefill/decode",
        "dtype": "bf16",
        "inputs": {"x": {"dtype": "bf16"}, "weight": {"dtype": "bf16"}},
        "outputs": {"out": {"dtype": "bf16"}},
        "mutates": [],
        "constant": ["weight"],
        "compare": {"out": {"kind": "float"}},
        "shapes": {str(i): {"origin": "atrex", "description": "say where this shape is from"} for i in range(2)},
    }
    files = {
        "reference.py": _REFERENCE.format(operator=operator),
        "input.py": _INPUT.format(operator=operator),
        "work.py": _WORK.format(operator=operator),
        "shapes.json": json.dumps(shapes(1, 2048), indent=2) + "\n",
        "held_out.json": json.dumps(shapes(3, 129, 4097, prefix="h"), indent=2) + "\n",
        "metadata.json": json.dumps(metadata, indent=2) + "\n",
    }
    try:
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    generate_roofline(folder)
    return folder
