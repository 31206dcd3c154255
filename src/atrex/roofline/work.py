"""Semantic work of a unit: what its meaning forces any implementation to compute and to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ENGINES = ("matrix", "vector")


@dataclass(frozen=True)
class Work:
    """FLOPs by engine and dtype, and bytes moved, for one (operator, shape).

    `flops` is ``{engine: {dtype: FLOPs}}`` with engine `matrix` (work that some known algorithm can express as a
    matrix product) or `vector` (the rest); dtypes are the short names of `atrex.problems.dtypes`.
    """

    flops: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def total_flops(self) -> int:
        return sum(n for by_dtype in self.flops.values() for n in by_dtype.values())

    @property
    def total_bytes(self) -> int:
        return self.bytes_read + self.bytes_written
