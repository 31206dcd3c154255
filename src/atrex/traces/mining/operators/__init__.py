"""A file an operator: how its dimensions are read from a call, and how they become the suite's arguments.

`dims(call)` gives every dimension and setting with its source, or raises `Unknown`. `kwargs(values)` makes
(init_kwargs, input_kwargs) of them. `serves(call)`, where a file has it, names the operator of the suite whose
problem expresses the call, where that is not the one whose kernels ran: kernels of one family serve causal and
bidirectional attention, prompts and single tokens.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def known() -> tuple[str, ...]:
    """The operators that have a file here."""
    return tuple(sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_")))


def module(operator: str) -> ModuleType:
    """The file of an operator. Raises KeyError if it has none."""
    if operator not in known():
        raise KeyError(operator)
    return importlib.import_module(f"{__name__}.{operator}")
