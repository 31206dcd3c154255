"""Sequence lengths in their compact form. Without torch: what W and Q are made from must load without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Run = int | Mapping[str, int]
Lengths = Mapping[str, int] | Sequence[Run]


def expand(lengths: Lengths) -> list[int]:
    """{"count": 3, "length": 256}, or a list of such runs and plain integers, as the list of all lengths."""
    runs = [lengths] if isinstance(lengths, Mapping) else lengths
    return [n for run in runs for n in ([run["length"]] * run["count"] if isinstance(run, Mapping) else [run])]


def ragged(count: int, mean: int) -> list[int]:
    """`count` lengths from 1 to 2 * mean - 1 that sum to count * mean, in pairs around it; a single one is `mean`."""
    found = []
    for pair in range(count // 2):
        off = (1 + 37 * pair) % mean
        found += [mean - off, mean + off]
    return found + [mean] * (count % 2)
