"""rocprofv3's CSV (`*_kernel_trace.csv`), with the tables of the same run beside it.

Columns differ from version to version and are found by name. `X_hip_api_trace.csv`, `X_marker_api_trace.csv` and
`X_memory_copy_trace.csv` next to `X_kernel_trace.csv` are read with it; their correlation ids and clock are the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress

FORMAT = "rocprofv3 csv"
_SUFFIX = "kernel_trace.csv"


def recognizes(head: Head) -> bool:
    first = head.start.split(b"\n", 1)[0]
    return b"Start_Timestamp" in first and b"," in first


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The dispatches of a kernel trace, and what the files beside it say.

    Raises UserError for another of rocprofv3's tables, naming the one to give.
    """
    kernels = _table(path)
    if "Kernel_Name" not in kernels.columns:
        raise UserError(f"{path}: no column Kernel_Name: give the run's *_{_SUFFIX}, this table is read with it")
    if not len(kernels):
        raise UserError(f"{path}: no dispatch in it")
    strings, beside, notes = raw.Strings(), {}, []
    for kind in ("hip_api", "marker_api", "memory_copy", "rccl_api"):
        other = path.with_name(path.name.replace(_SUFFIX, f"{kind}_trace.csv"))
        if other != path and other.exists():
            beside[kind] = _table(other)
            notes.append(f"read with {other.name}")
    parts = [_kernels(kernels, strings)]
    if "memory_copy" in beside:
        parts.append(_copies(beside["memory_copy"], strings))
    launches = _calls(beside["hip_api"], strings) if "hip_api" in beside else raw.empty(raw.LAUNCHES)
    ranges = [_ranges(beside[k], strings) for k in ("marker_api", "rccl_api") if k in beside]
    meta = raw.Meta(
        format=FORMAT, vendor="amd", notes=notes,
        counts={"kernel_dispatch": len(kernels), **{k: len(t) for k, t in beside.items()}},
    )  # fmt: skip
    host = pl.concat(ranges) if ranges else raw.empty(raw.HOST)
    return raw.RawTrace(path, meta, strings, pl.concat(parts), launches, host, raw.empty(raw.DEVICE_ANNOTATIONS))


def _table(path: Path) -> pl.DataFrame:
    """A table as text, empty lines left out."""
    try:
        table = pl.read_csv(path, infer_schema=False, truncate_ragged_lines=True, ignore_errors=True)
        return table.filter(pl.col(table.columns[-1]).is_not_null() | pl.col(table.columns[0]).is_not_null())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path}: not a CSV file: {' '.join(str(error).split())[:200]}") from None


def _numbers(table: pl.DataFrame, *names: str, missing: int = -1) -> np.ndarray:
    """The first of the columns that is there, as integers; `Agent 4` is 4."""
    for name in names:
        if name in table.columns:
            values = table[name].str.strip_chars('" ').str.extract(r"(\d+)\s*$", 1).cast(pl.Int64, strict=False)
            return values.fill_null(missing).to_numpy()
    return np.full(len(table), missing, dtype=np.int64)


def _times(table: pl.DataFrame) -> dict[str, np.ndarray]:
    start = _numbers(table, "Start_Timestamp")
    return {"start": start, "dur": np.maximum(_numbers(table, "End_Timestamp") - start, 0)}


def _kernels(table: pl.DataFrame, strings: raw.Strings) -> pl.DataFrame:
    # Versions call it Workgroup_Size_X or Workgroup_Size.X; Grid_Size counts work items.
    block = [np.maximum(_numbers(table, f"Workgroup_Size_{a}", f"Workgroup_Size.{a}", missing=1), 1) for a in "XYZ"]
    items = [_numbers(table, f"Grid_Size_{a}", f"Grid_Size.{a}", missing=1) for a in "XYZ"]
    grid = np.stack([-(-i // b) for i, b in zip(items, block, strict=True)], axis=1).tolist()
    return raw.frame(raw.DEVICE, {
        "kind": np.full(len(table), raw.KERNEL), "name": strings.ids(table["Kernel_Name"].to_list()), **_times(table),
        "device": _numbers(table, "Agent_Id"), "stream": _numbers(table, "Stream_Id", "Queue_Id"),
        "correlation": _numbers(table, "Correlation_Id"), "grid": strings.ids(map(json.dumps, grid)),
        "block": strings.ids(json.dumps(b) for b in np.stack(block, axis=1).tolist()),
    }, len(table))  # fmt: skip


def _copies(table: pl.DataFrame, strings: raw.Strings) -> pl.DataFrame:
    directions = table["Direction"].to_list() if "Direction" in table.columns else [""] * len(table)
    names = [f"Memcpy {(d or '').removeprefix('MEMORY_COPY_')}".strip() for d in directions]
    return raw.frame(raw.DEVICE, {
        "kind": np.full(len(table), raw.MEMCPY), "name": strings.ids(names), **_times(table),
        "device": _numbers(table, "Destination_Agent_Id"), "stream": _numbers(table, "Stream_Id"),
        "correlation": _numbers(table, "Correlation_Id"),
    }, len(table))  # fmt: skip


def _threads(table: pl.DataFrame, strings: raw.Strings) -> np.ndarray:
    pids, tids = _numbers(table, "Process_Id"), _numbers(table, "Thread_Id")
    return strings.ids(f"{p}/{t}" for p, t in zip(pids.tolist(), tids.tolist(), strict=True))


def _calls(table: pl.DataFrame, strings: raw.Strings) -> pl.DataFrame:
    return raw.frame(raw.LAUNCHES, {
        "name": strings.ids(table["Function"].to_list()), "thread": _threads(table, strings), **_times(table),
        "correlation": _numbers(table, "Correlation_Id"),
    }, len(table))  # fmt: skip


def _ranges(table: pl.DataFrame, strings: raw.Strings) -> pl.DataFrame:
    return raw.frame(raw.HOST, {
        "name": strings.ids(table["Function"].to_list()), "thread": _threads(table, strings), **_times(table),
    }, len(table))  # fmt: skip
