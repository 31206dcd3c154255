"""The database of rocprof v1: one table KERN, a row a dispatch, nothing of the host."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress
from atrex.traces.readers.sqlite import columns, integers, opened

FORMAT = "rocprof v1"


def recognizes(head: Head) -> bool:
    return {"KernelName", "BeginNs", "EndNs"} <= set(head.tables.get("KERN", ()))


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The dispatches of a rocprof v1 database. Raises UserError if there is none."""
    with opened(path) as db:
        present = {r[1] for r in db.execute("PRAGMA table_info(KERN)")}
        wanted = {"name": "KernelName", "device": "gpu-id", "queue": "queue-id", "pid": "pid", "grid": "grd",
                  "block": "wgr", "start": "BeginNs", "end": "EndNs"}  # fmt: skip
        parts = [f'"{c}"' if c in present else "NULL" for c in wanted.values()]
        c = columns(db, f"SELECT {', '.join(parts)} FROM KERN", list(wanted))
    if not c["name"]:
        raise UserError(f"{path}: no dispatch in it: expected rows in KERN")
    strings = raw.Strings()
    start = integers(c["start"])
    blocks = [None if b is None else json.dumps([b, 1, 1]) for b in c["block"]]
    sizes = zip(c["grid"], c["block"], strict=True)
    grids = [None if g is None or not b else json.dumps([-(-g // b), 1, 1]) for g, b in sizes]
    device = raw.frame(raw.DEVICE, {
        "kind": np.full(len(start), raw.KERNEL), "name": strings.ids(n.strip('"') for n in c["name"]), "start": start,
        "dur": integers(c["end"]) - start, "device": integers(c["device"]), "stream": integers(c["queue"]),
        "process": np.maximum(integers(c["pid"]), 0), "grid": strings.ids(grids), "block": strings.ids(blocks),
    }, len(start))  # fmt: skip
    meta = raw.Meta(format=FORMAT, vendor="amd", counts={"dispatch": len(start)})
    return raw.RawTrace(path, meta, strings, device, raw.empty(raw.LAUNCHES), raw.empty(raw.HOST),
                        raw.empty(raw.DEVICE_ANNOTATIONS))  # fmt: skip
