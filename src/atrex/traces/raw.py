"""What a reader makes of a file, before anything is linked: four frames of records with their strings interned.

Times are integer nanoseconds on the file's own clock. Ids of absent things are -1. `process` keeps correlation ids of
different processes apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

# Kinds of device records. `graph` is a whole graph replay that the profiler did not break up.
KERNEL, MEMCPY, MEMSET, GRAPH = 0, 1, 2, 3
DEVICE_KIND_NAMES = ("kernel", "memcpy", "memset", "graph")
# Kinds of host records, from the outside in where two begin and end at the same time.
ANNOTATION, FRAME, OP = 0, 1, 2
HOST_KIND_NAMES = ("annotation", "frame", "op")

DEVICE = {
    "kind": pl.UInt8, "name": pl.Int32, "process": pl.Int64, "device": pl.Int64, "stream": pl.Int64,
    "start": pl.Int64, "dur": pl.Int64, "correlation": pl.Int64, "grid": pl.Int32, "block": pl.Int32,
    "bytes": pl.Int64, "graph": pl.Int64, "node": pl.Int64,
}  # fmt: skip
LAUNCHES = {
    "name": pl.Int32, "process": pl.Int64, "thread": pl.Int32, "start": pl.Int64, "dur": pl.Int64,
    "correlation": pl.Int64, "kernel": pl.Int32, "grid": pl.Int32, "block": pl.Int32,
    "created": pl.Int64,  # id of the graph node that the call created
}  # fmt: skip
HOST = {
    "kind": pl.UInt8, "name": pl.Int32, "thread": pl.Int32, "start": pl.Int64, "dur": pl.Int64,
    "dims": pl.Int32, "dtypes": pl.Int32, "concrete": pl.Int32,
}  # fmt: skip
DEVICE_ANNOTATIONS = {
    "name": pl.Int32, "device": pl.Int64, "stream": pl.Int64, "start": pl.Int64, "dur": pl.Int64,
}  # fmt: skip


@dataclass
class Loss:
    """What a damaged file cost."""

    repaired: int = 0
    lost: int = 0
    lost_bytes: int = 0
    truncated: bool = False
    examples: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.repaired or self.lost or self.lost_bytes or self.truncated)


@dataclass
class Meta:
    """About a trace as a whole. `counts` are the records of the file by kind, those that no table keeps included."""

    format: str
    dialect: str = ""
    vendor: str = ""  # nvidia | amd
    devices: list[str] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    processes: dict[str, str] = field(default_factory=dict)
    base_ns: int | None = None  # wall clock of time 0, where the file says
    counts: dict[str, int] = field(default_factory=dict)
    loss: Loss = field(default_factory=Loss)
    has_stacks: bool = False
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class Strings:
    """The strings of a trace. Ids are positions; -1 is no string."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._ids: dict[str, int] = {}

    def id(self, value: str | None) -> int:
        if value is None:
            return -1
        number = self._ids.get(value)
        if number is None:
            number = self._ids[value] = len(self.values)
            self.values.append(value)
        return number

    def ids(self, values: Any) -> np.ndarray:
        """Ids of a sequence of strings and Nones."""
        get = self.id
        return np.array([get(v) for v in values], dtype=np.int32)

    def __getitem__(self, number: int) -> str:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

    def series(self, ids: pl.Series) -> pl.Series:
        """The strings of `ids`; null for -1."""
        table = pl.Series(ids.name, self.values, dtype=pl.String)
        return table.gather(ids.replace(-1, None)) if len(self.values) else pl.Series(ids.name, [None] * len(ids))


@dataclass
class RawTrace:
    """One file's records. Columns and types as the module's constants say; rows in any order."""

    path: Path
    meta: Meta
    strings: Strings
    device: pl.DataFrame
    launches: pl.DataFrame
    host: pl.DataFrame
    device_annotations: pl.DataFrame


def frame(schema: dict[str, Any], columns: dict[str, Any], rows: int) -> pl.DataFrame:
    """A frame of `schema` from arrays by column. Missing columns are filled with -1, times with 0."""
    filled = {}
    for name, dtype in schema.items():
        if name in columns:
            filled[name] = pl.Series(name, columns[name]).cast(dtype)
        else:
            value = 0 if name in ("start", "dur", "process", "kind") else -1
            filled[name] = pl.Series(name, np.full(rows, value)).cast(dtype)
    return pl.DataFrame(filled)


def empty(schema: dict[str, Any]) -> pl.DataFrame:
    """A frame of `schema` without rows."""
    return pl.DataFrame(schema=schema)
