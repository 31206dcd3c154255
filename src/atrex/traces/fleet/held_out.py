"""Held-out shapes of a mined operator: its fixed dimensions, dynamic ones off the list, ragged, and one larger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from atrex.traces.mining import operators
from atrex.traces.mining.dims import Dims, values
from atrex.traces.mining.mine import shape_text

WANTED = 4


def held_out(operator: str, listed: Sequence[Dims]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(init_kwargs, input_kwargs) of up to four shapes near `listed`, in no case one of them.

    `listed`: dimensions of the operator's shapes, smallest first. Three at least where any dimension is dynamic.
    """
    make = operators.module(operator).kwargs
    known = {shape_text(*make(values(d))) for d in listed}
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for changed in _candidates(listed):
        kwargs = make(changed)
        if shape_text(*kwargs) not in known and not _impossible(changed):
            known.add(shape_text(*kwargs))
            found.append(kwargs)
        if len(found) == WANTED:
            break
    return found


def _impossible(d: Mapping[str, Any]) -> bool:
    """Fewer tokens than sequences to hold them."""
    return "tokens" in d and "requests" in d and d["tokens"] < d["requests"]


def _candidates(listed: Sequence[Dims]) -> Iterator[dict[str, Any]]:
    small, large, middle = listed[0], listed[-1], listed[len(listed) // 2]
    yield _changed(small, lambda n: n - 1 if n > 2 else n + 2)
    yield _changed(middle, lambda n: n * 3 // 4 | 1)
    yield _changed(large, lambda n: n + n // 8 + 1)
    for step in range(3, 40, 2):
        yield _changed(small, lambda n, step=step: n + step)


def _changed(dims: Dims, change: Callable[[int], int]) -> dict[str, Any]:
    """Values with every dynamic dimension changed; what is 0 is absent and stays so."""
    return {name: max(1, change(d.value)) if d.bucket is not None and d.value else d.value for name, d in dims.items()}
