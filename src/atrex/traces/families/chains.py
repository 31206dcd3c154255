"""Operators that eager code spells out as a chain of ATen kernels, recognized by the order of the kernels alone.

For traces without modules (no stacks, graph replays without their capture, kernels launched before the window). A
kernel is one token; a chain is an expression over tokens, matched along each stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

_ELEMENT = re.compile(r"^(\(*)([a-z_|]+)([?*+]?)(\)*[?*+]?)$")
_FIRST = 0xE000  # private use: a character per token


class Searched(Protocol):
    """A compiled expression, or one that compiles itself."""

    def search(self, value: str, /) -> Any: ...


@dataclass(frozen=True)
class Chain:
    """`expression`: tokens separated by spaces, `a|b` alternatives, `?*+` repeats, one pair of parentheses around
    what is meant where the rest is only its surroundings.
    """

    family: str
    expression: str
    rule: str


class ChainMatcher:
    """Chains over a fixed set of tokens."""

    def __init__(self, tokens: Mapping[str, Searched], chains: list[Chain], anchors: tuple[str, ...]) -> None:
        """`anchors`: tokens given by class or family (`gemm`, `attention`) and not by the kernel's name.

        Raises ValueError for an expression that cannot be read or a token that is not defined.
        """
        self.tokens = tokens
        names = [*tokens, *anchors]
        self._codes = {name: chr(_FIRST + i) for i, name in enumerate(names)}
        self._chains = [(chain, self._compile(chain.expression)) for chain in chains]

    def _compile(self, expression: str) -> re.Pattern[str]:
        parts = []
        for element in expression.split():
            found = _ELEMENT.match(element)
            if found is None:
                raise ValueError(f"{element!r}: expected token, a|b, with ?, * or +")
            unknown = [t for t in found[2].split("|") if t not in self._codes]
            if unknown:
                raise ValueError(f"{unknown[0]!r} is no token: expected one of {', '.join(self._codes)}")
            characters = "".join(self._codes[t] for t in found[2].split("|"))
            parts.append(f"{found[1]}[{characters}]{found[3]}{found[4]}")
        return re.compile("".join(parts))

    def token(self, text: str) -> str:
        """The token of a kernel by its readable name, or '' for none."""
        for name, pattern in self.tokens.items():
            if pattern.search(text):
                return name
        return ""

    def find(self, sequence: list[str], free: Callable[[int], bool]) -> list[tuple[int, Chain]]:
        """(position, chain) of the members of chains in a stream's tokens. Only `free` positions are assigned."""
        text = "".join(self._codes.get(token, ".") for token in sequence)
        found: dict[int, Chain] = {}
        for chain, pattern in self._chains:
            for match in pattern.finditer(text):
                low, high = match.span(1) if pattern.groups and match.start(1) >= 0 else match.span()
                for position in range(low, high):
                    if position not in found and free(position):
                        found[position] = chain
        return sorted(found.items(), key=lambda item: item[0])


def streams(device: np.ndarray, stream: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
    """Rows of each (device, stream) in order of start."""
    order = np.lexsort((start, stream, device))
    if not len(order):
        return []
    change = (np.diff(device[order]) != 0) | (np.diff(stream[order]) != 0)
    return np.split(order, np.flatnonzero(change) + 1)
