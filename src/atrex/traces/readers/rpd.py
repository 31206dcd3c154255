"""RPD, the database of rocmProfileData (SGLang's profiler activity RPD).

Its tables begin with `rocpd_` as those of ROCm's own rocpd do; it is told apart by `rocpd_op` and `rocpd_api_ops`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress
from atrex.traces.readers.sqlite import columns, integers, opened

FORMAT = "rpd"
_COPIES = {"CopyDeviceToHost": "Memcpy DtoH", "CopyHostToDevice": "Memcpy HtoD", "CopyDeviceToDevice": "Memcpy DtoD"}


def recognizes(head: Head) -> bool:
    return {"rocpd_op", "rocpd_api", "rocpd_api_ops"} <= set(head.tables)


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The records of an RPD file. Raises UserError if it holds no operation."""
    with opened(path) as db:
        strings = raw.Strings()
        ops = columns(db, """
            SELECT o.id, o.gpuId, o.queueId, o.start, o.end, d.string, t.string, MIN(a.api_id)
            FROM rocpd_op o JOIN rocpd_string d ON d.id = o.description_id JOIN rocpd_string t ON t.id = o.opType_id
            LEFT JOIN rocpd_api_ops a ON a.op_id = o.id GROUP BY o.id
            """, ("id", "gpu", "queue", "start", "end", "name", "type", "api"))  # fmt: skip
        if not ops["id"]:
            raise UserError(f"{path}: no device operation in it: expected rows in rocpd_op")
        shapes = _shapes(db)
        apis = columns(db, """
            SELECT a.id, a.pid, a.tid, a.start, a.end, n.string, g.string FROM rocpd_api a
            JOIN rocpd_string n ON n.id = a.apiName_id JOIN rocpd_string g ON g.id = a.args_id
            """, ("id", "pid", "tid", "start", "end", "name", "args"))  # fmt: skip
        version = dict(db.execute("SELECT tag, value FROM rocpd_metadata")).get("schema_version", "?")
        device = _device(ops, shapes, strings)
        launches, host = _host(apis, strings)
    meta = raw.Meta(
        format=FORMAT, dialect=f"schema {version}", vendor="amd",
        counts={"op": len(ops["id"]), "api": len(apis["id"])},
    )  # fmt: skip
    return raw.RawTrace(path, meta, strings, device, launches, host, raw.empty(raw.DEVICE_ANNOTATIONS))


def _shapes(db) -> dict[int, tuple[str, str, str]]:
    """api id -> (kernel name, grid in blocks, block). RPD's grid is as the runtime was given it: blocks for
    hipLaunchKernel, work items for module launches; both are kept as recorded.
    """
    query = """
        SELECT k.api_ptr_id, s.string, k.gridX, k.gridY, k.gridZ, k.workgroupX, k.workgroupY, k.workgroupZ
        FROM rocpd_kernelapi k JOIN rocpd_string s ON s.id = k.kernelName_id
        """
    return {
        api: (name, json.dumps([gx, gy, gz]), json.dumps([bx, by, bz]))
        for api, name, gx, gy, gz, bx, by, bz in db.execute(query)
    }


def _device(ops: dict[str, list], shapes: dict[int, tuple[str, str, str]], strings: raw.Strings) -> pl.DataFrame:
    kinds, names, grids, blocks = [], [], [], []
    for name, kind, api in zip(ops["name"], ops["type"], ops["api"], strict=True):
        known = shapes.get(api)
        if kind == "KernelExecution" or (known and not kind.startswith(("Copy", "Fill"))):
            kinds.append(raw.KERNEL)
            names.append(name or (known[0] if known else "[unknown]"))
        elif kind.startswith("Fill"):
            kinds.append(raw.MEMSET)
            names.append("Memset")
        else:
            kinds.append(raw.MEMCPY)
            names.append(_COPIES.get(kind, kind))
        grids.append(known[1] if known else None)
        blocks.append(known[2] if known else None)
    start = integers(ops["start"])
    return raw.frame(raw.DEVICE, {
        "kind": np.array(kinds, dtype=np.uint8), "name": strings.ids(names), "start": start,
        "dur": integers(ops["end"]) - start, "device": integers(ops["gpu"]), "stream": integers(ops["queue"]),
        "correlation": integers(ops["api"]), "grid": strings.ids(grids), "block": strings.ids(blocks),
    }, len(start))  # fmt: skip


def _host(apis: dict[str, list], strings: raw.Strings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(launches, ranges): `UserMarker` rows are ranges whose text is in the arguments, everything else is a call."""
    marker = [i for i, n in enumerate(apis["name"]) if n == "UserMarker"]
    call = [i for i, n in enumerate(apis["name"]) if n != "UserMarker"]

    def picked(name: str, rows: list[int]) -> list:
        return [apis[name][i] for i in rows]

    def threads(rows: list[int]) -> np.ndarray:
        return strings.ids(f"{p}/{t}" for p, t in zip(picked("pid", rows), picked("tid", rows), strict=True))

    start = integers(picked("start", call))
    launches = raw.frame(raw.LAUNCHES, {
        "name": strings.ids(picked("name", call)), "thread": threads(call), "start": start,
        "dur": integers(picked("end", call)) - start, "correlation": integers(picked("id", call)),
    }, len(call))  # fmt: skip
    start = integers(picked("start", marker))
    texts = picked("args", marker)
    kinds = [raw.OP if "::" in t and " " not in t else raw.ANNOTATION for t in texts]
    host = raw.frame(raw.HOST, {
        "kind": np.array(kinds, dtype=np.uint8), "name": strings.ids(texts), "thread": threads(marker), "start": start,
        "dur": integers(picked("end", marker)) - start,
    }, len(marker))  # fmt: skip
    return launches, host
