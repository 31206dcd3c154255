"""A data set of traces: a folder of Parquet files, one a trace and table, and a summary a trace.

    DIR/atrex-traces.json            what this folder is
    DIR/traces/ID.json               a trace's summary, written last: without it the trace does not count
    DIR/{kernels,launches,host_ops,annotations,contexts}/ID.parquet

Polars, pandas and DuckDB read the files as they are.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from atrex.errors import UserError

MARKER = "atrex-traces.json"
VERSION = 1
TABLES = ("kernels", "launches", "host_ops", "annotations", "contexts")


@dataclass(frozen=True)
class Dataset:
    """An open data set. `summaries`: trace id -> its summary, in order of id."""

    path: Path
    summaries: dict[str, dict[str, Any]]

    def table(self, name: str, traces: list[str] | None = None) -> pl.LazyFrame:
        """One table over all traces, or over some of them."""
        chosen = list(self.summaries) if traces is None else traces
        files = [self.path / name / f"{trace}.parquet" for trace in chosen]
        return pl.scan_parquet(files) if files else pl.LazyFrame()

    def serving(self) -> list[str]:
        """The traces whose device time counts: those of graph captures are left out."""
        return [trace for trace, summary in self.summaries.items() if summary["role"] == "serving"]


def create(path: Path) -> None:
    """Make `path` a data set, or check that it is one. Raises UserError if it holds something else."""
    marker = path / MARKER
    if marker.exists():
        _check(marker)
        return
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: exists and is no data set of traces: expected an empty or new folder")
    for name in (*TABLES, "traces"):
        (path / name).mkdir(parents=True, exist_ok=True)
    _write_json(marker, {"format": "atrex-traces", "version": VERSION})


def _check(marker: Path) -> None:
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{marker}: unreadable: {error}") from None
    if content.get("version") != VERSION:
        raise UserError(f"{marker}: version {content.get('version')!r}: expected {VERSION}; import the traces again")


def open_dataset(path: Path) -> Dataset:
    """Open a data set. Raises UserError if `path` is none or holds no trace."""
    if not (path / MARKER).exists():
        raise UserError(f"{path}: no data set of traces: expected a folder that `atrex trace import --out` wrote")
    _check(path / MARKER)
    summaries = {}
    for file in sorted((path / "traces").glob("*.json")):
        try:
            summaries[file.stem] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{file}: not JSON: {error}") from None
    if not summaries:
        raise UserError(f"{path}: no trace in it yet")
    return Dataset(path, summaries)


def trace_id(path: Path, source: Path, app: str | None, taken: Mapping[str, str]) -> str:
    """An id for a file's trace: its name, after the application's if there is one.

    A file that was imported before keeps its id and is replaced. `taken`: id -> source of the files imported with it.
    """
    stem = re.sub(r"(\.pt)?(\.trace)?\.(json|sqlite|csv|db|rpd)(\.gz)?$", "", source.name)
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{app}-{stem}" if app else stem).strip("-.") or "trace"
    number = 1
    while True:
        candidate = base if number == 1 else f"{base}-{number}"
        owner = taken.get(candidate)
        if owner is None:
            file = path / "traces" / f"{candidate}.json"
            owner = json.loads(file.read_text(encoding="utf-8")).get("source") if file.exists() else None
        if owner is None or owner == str(source.resolve()):
            return candidate
        number += 1


def write(path: Path, trace: str, frames: Mapping[str, Callable[[], pl.DataFrame]], summary: dict[str, Any]) -> None:
    """Write one trace, its tables built and written side by side.

    An interruption leaves the data set without it, or with the one that was there.
    """

    def put(name: str) -> None:
        target = path / name / f"{trace}.parquet"
        handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
        os.close(handle)
        try:
            frames[name]().write_parquet(temporary, compression="zstd", compression_level=1, statistics=False)
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(put, frames))
    _write_json(path / "traces" / f"{trace}.json", summary)


def remove(path: Path, trace: str) -> None:
    """Take one trace out of the data set, its summary first: without it the trace does not count."""
    for file in (path / "traces" / f"{trace}.json", *(path / name / f"{trace}.parquet" for name in TABLES)):
        file.unlink(missing_ok=True)


def _write_json(target: Path, content: dict[str, Any]) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, allow_nan=False)
    os.replace(temporary, target)
