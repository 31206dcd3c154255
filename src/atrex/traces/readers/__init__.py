"""A file per format. A reader turns one file into an `atrex.traces.raw.RawTrace`.

A module of this folder with a `FORMAT` is a reader: `recognizes(head)` says whether it reads a file that begins so, and
`read(path, jobs, progress)` reads it. A new format is a new file here.
"""

from __future__ import annotations

import importlib
import pkgutil
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from atrex.errors import UserError

Progress = Callable[[int, int], None]
HEAD = 1 << 16
_SQLITE = b"SQLite format 3\0"
_ADVICE = {
    ".nsys-rep": "a report of Nsight Systems: export it with `nsys export --type sqlite {}`",
    ".qdrep": "a report of Nsight Systems: export it with `nsys export --type sqlite {}`",
    ".ncu-rep": "a report of Nsight Compute: it holds counters of single kernels, no trace",
    ".pftrace": "a Perfetto trace: record with `rocprofv3 --output-format json` instead",
    ".otf2": "an OTF2 trace: record with `rocprofv3 --output-format json` instead",
}


@dataclass(frozen=True)
class Head:
    """What a file begins with: its first bytes, decompressed, and of a SQLite database its tables and their columns."""

    path: Path
    start: bytes
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)


def head_of(path: Path) -> Head:
    """Look at a file. Raises UserError if it cannot be read or is empty."""
    try:
        with path.open("rb") as file:
            start = file.read(HEAD)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not start:
        raise UserError(f"{path}: the file is empty")
    if start.startswith(b"\x1f\x8b"):
        try:
            start = zlib.decompressobj(31).decompress(start, HEAD)
        except zlib.error as error:
            raise UserError(f"{path}: not a gzip file: {error}") from None
    if start.startswith(_SQLITE):
        return Head(path, start, _tables(path))
    return Head(path, start)


def _tables(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
            names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
            return {n: tuple(r[1] for r in connection.execute(f'PRAGMA table_info("{n}")')) for n in names}
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path}: not a readable SQLite database: {error}") from None


def readers() -> dict[str, ModuleType]:
    """All readers by format, in order of name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "FORMAT"):
            found[module.FORMAT] = module
    return found


def reader_of(path: Path) -> ModuleType:
    """The reader of a file, by its content.

    Raises UserError, naming what the file is if that is known, and how to get one that can be read.
    """
    for suffix, advice in _ADVICE.items():
        if path.name.endswith(suffix):
            raise UserError(f"{path}: {advice.format(path.name)}")
    head = head_of(path)
    for module in readers().values():
        if module.recognizes(head):
            return module
    known = ", ".join(readers())
    raise UserError(f"{path}: no trace format that Atrex reads: expected one of {known}")
