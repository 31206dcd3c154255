"""Nsight Systems, as `nsys export --type sqlite` writes it: schemas 2.x and 3.x, columns taken as they are found.

Kernels inside CUDA graphs have rows only if they were recorded with `--cuda-graph-trace=node`. The default records one
row a replay, which says nothing about operators: such a file is refused if it holds nothing else.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress
from atrex.traces.readers.sqlite import columns, has_rows, integers, opened

FORMAT = "nsys"
_KERNELS, _MEMCPY, _MEMSET = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
_GRAPHS, _RUNTIME = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME"
_NODE_FLAG = "--cuda-graph-trace=node"
# ENUM_CUDA_MEMCPY_OPER, for exports that leave the table out.
_MEMCPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
                 10: "PtoP"}  # fmt: skip
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
_VERSION = re.compile(r"_v\d+$")
# torch.autograd.profiler.emit_nvtx: `aten::mul, op_id = 322567`, with record_shapes `, sizes = [[8, 4], []]`.
_TORCH = re.compile(r"^([\w:.<>~ ]+?)(?:, seq = -?\d+)?, op_id = \d+(?:, sizes = (\[.*\]))?(?:, input_op_ids = .*)?$")


def recognizes(head: Head) -> bool:
    return "StringIds" in head.tables or any(t.startswith("CUPTI_ACTIVITY_KIND_") for t in head.tables)


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The records of an export.

    Raises UserError, with the flag to record with, for one without kernel rows.
    """
    with opened(path) as db:
        tables = {n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        present = {t for t in tables if has_rows(db, t)} if "StringIds" in tables else set()
        return _Export(path, db, tables, present).trace()


class _Export:
    def __init__(self, path: Path, db: sqlite3.Connection, tables: set[str], present: set[str]) -> None:
        self.path, self.db, self.tables, self.present = path, db, tables, present
        self.strings = raw.Strings()
        self.texts: dict[int, str] = dict(db.execute("SELECT id, value FROM StringIds")) if present else {}
        self.notes: list[str] = []
        self._known: dict[str, set[str]] = {}

    def _has(self, table: str, column: str) -> bool:
        if table not in self._known:
            self._known[table] = {r[1] for r in self.db.execute(f'PRAGMA table_info("{table}")')}
        return column in self._known[table]

    def _select(self, table: str, wanted: dict[str, str]) -> dict[str, list]:
        """Columns by their name here; `wanted`: name -> column of the table, NULL where the schema has none."""
        if table not in self.present:
            return {name: [] for name in wanted}
        parts = [f'"{c}"' if self._has(table, c) else "NULL" for c in wanted.values()]
        return columns(self.db, f'SELECT {", ".join(parts)} FROM "{table}"', list(wanted))

    def trace(self) -> raw.RawTrace:
        self._require_kernels()
        device = pl.concat([self._kernels(), self._copies(_MEMCPY), self._copies(_MEMSET), self._graphs()])
        host = self._ranges()
        launches = pl.concat([self._runtime(), self._node_events()])
        meta = raw.Meta(
            format=FORMAT, dialect=f"schema {self._schema()}", vendor="nvidia", devices=self._devices(),
            base_ns=self._base(), notes=self.notes,
            counts={t: self.db.execute(f'SELECT COUNT(*) FROM "{t}"').fetchone()[0]
                    for t in sorted(self.present) if t.startswith(("CUPTI_ACTIVITY", "NVTX_EVENTS"))},
        )  # fmt: skip
        return raw.RawTrace(self.path, meta, self.strings, device, launches, host, raw.empty(raw.DEVICE_ANNOTATIONS))

    def _require_kernels(self) -> None:
        graphs = _GRAPHS in self.present
        if _KERNELS not in self.present:
            if graphs:
                n = self.db.execute(f"SELECT COUNT(*) FROM {_GRAPHS}").fetchone()[0]
                raise UserError(
                    f"{self.path}: {n} graph replays without their kernels: record with `nsys profile {_NODE_FLAG}`"
                )
            raise UserError(f"{self.path}: no kernels in it: record with `nsys profile --trace=cuda,nvtx {_NODE_FLAG}`")
        if graphs:
            whole, inside = (
                self.db.execute(f'SELECT COALESCE(SUM("end" - start), 0) FROM {t}').fetchone()[0]
                for t in (_GRAPHS, _KERNELS)
            )
            self.notes.append(
                f"{whole / max(1, whole + inside):.1%} of device time is in graph replays without their kernels "
                f"(family graph): record with `nsys profile {_NODE_FLAG}`"
            )

    def _kernels(self) -> pl.DataFrame:
        c = self._select(_KERNELS, {
            "start": "start", "end": "end", "device": "deviceId", "stream": "streamId", "correlation": "correlationId",
            "process": "globalPid", "name": "demangledName", "short": "shortName", "node": "graphNodeId",
            "graph": "graphId", "gx": "gridX", "gy": "gridY", "gz": "gridZ",
            "bx": "blockX", "by": "blockY", "bz": "blockZ",
        })  # fmt: skip
        names = [
            self.texts.get(a) or self.texts.get(b) or "[unknown]" for a, b in zip(c["name"], c["short"], strict=True)
        ]
        return self._device(c, raw.KERNEL, names, {
            "grid": self.strings.ids(json.dumps(list(g)) for g in zip(c["gx"], c["gy"], c["gz"], strict=True)),
            "block": self.strings.ids(json.dumps(list(b)) for b in zip(c["bx"], c["by"], c["bz"], strict=True)),
            "node": integers(c["node"]), "graph": integers(c["graph"]),
        })  # fmt: skip

    def _copies(self, table: str) -> pl.DataFrame:
        c = self._select(table, {
            "start": "start", "end": "end", "device": "deviceId", "stream": "streamId", "correlation": "correlationId",
            "process": "globalPid", "bytes": "bytes", "kind": "copyKind", "node": "graphNodeId",
        })  # fmt: skip
        if table == _MEMSET:
            names, kind = ["Memset"] * len(c["start"]), raw.MEMSET
        else:
            names, kind = [f"Memcpy {_MEMCPY_KINDS.get(k, k)}" for k in c["kind"]], raw.MEMCPY
        return self._device(c, kind, names, {"bytes": integers(c["bytes"]), "node": integers(c["node"])})

    def _graphs(self) -> pl.DataFrame:
        c = self._select(_GRAPHS, {
            "start": "start", "end": "end", "device": "deviceId", "stream": "streamId", "correlation": "correlationId",
            "process": "globalPid", "graph": "graphId",
        })  # fmt: skip
        return self._device(c, raw.GRAPH, [f"graph {g}" for g in c["graph"]], {"graph": integers(c["graph"])})

    def _device(self, c: dict[str, list], kind: int, names: list[str], more: dict[str, Any]) -> pl.DataFrame:
        start, end = integers(c["start"]), integers(c["end"])
        return raw.frame(raw.DEVICE, {
            "kind": np.full(len(start), kind), "name": self.strings.ids(names), "start": start,
            "dur": np.maximum(end - start, 0), "device": integers(c["device"]), "stream": integers(c["stream"]),
            "correlation": integers(c["correlation"]), "process": _process(c["process"]), **more,
        }, len(start))  # fmt: skip

    def _threads(self, ids: list[int | None]) -> np.ndarray:
        return self.strings.ids(None if g is None else f"{g >> 24 & 0xFFFFFF}/{g & 0xFFFFFF}" for g in ids)

    def _runtime(self) -> pl.DataFrame:
        c = self._select(_RUNTIME, {"start": "start", "end": "end", "thread": "globalTid", "name": "nameId",
                                    "correlation": "correlationId"})  # fmt: skip
        start = integers(c["start"])
        return raw.frame(raw.LAUNCHES, {
            "name": self.strings.ids(_VERSION.sub("", self.texts.get(n, "[unknown]")) for n in c["name"]),
            "process": _process(c["thread"]), "thread": self._threads(c["thread"]), "start": start,
            "dur": integers(c["end"]) - start, "correlation": integers(c["correlation"]),
        }, len(start))  # fmt: skip

    def _node_events(self) -> pl.DataFrame:
        """Calls that created graph nodes. A node cloned when its graph was instantiated stands where its original
        does.
        """
        table = next((t for t in ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS") if t in self.present), "")
        c = self._select(table, {"start": "start", "end": "end", "thread": "globalTid", "name": "nameId",
                                 "node": "graphNodeId", "original": "originalGraphNodeId"})  # fmt: skip
        at = {node: i for i, node in enumerate(c["node"]) if node is not None}
        rows, nodes = [], []
        for node, i in at.items():
            seen = set()
            while c["original"][i] in at and c["original"][i] != c["node"][i] and i not in seen:
                seen.add(i)
                i = at[c["original"][i]]
            rows.append(i)
            nodes.append(node)

        def picked(name: str) -> list:
            return [c[name][i] for i in rows]

        start = integers(picked("start"))
        return raw.frame(raw.LAUNCHES, {
            "name": self.strings.ids(_VERSION.sub("", self.texts.get(n, "[unknown]")) for n in picked("name")),
            "process": _process(picked("thread")), "thread": self._threads(picked("thread")), "start": start,
            "dur": integers(picked("end")) - start, "created": np.array(nodes, dtype=np.int64),
        }, len(start))  # fmt: skip

    def _ranges(self) -> pl.DataFrame:
        """NVTX ranges: those of torch's emit_nvtx as operators, the others as annotations."""
        c = self._select("NVTX_EVENTS", {"start": "start", "end": "end", "type": "eventType", "text": "text",
                                         "thread": "globalTid", "id": "textId", "domain": "domainId"})  # fmt: skip
        keep = [i for i, (t, e) in enumerate(zip(c["type"], c["end"], strict=True))
                if t in (_PUSH_POP, _START_END) and e is not None]  # fmt: skip
        kinds, names, dims = [], [], []
        for i in keep:
            text = c["text"][i] if c["text"][i] is not None else self.texts.get(c["id"][i], "")
            found = _TORCH.match(text)
            kinds.append(raw.OP if found else raw.ANNOTATION)
            names.append(found[1] if found else text)
            dims.append(found[2] if found else None)
        start = integers([c["start"][i] for i in keep])
        return raw.frame(raw.HOST, {
            "kind": np.array(kinds, dtype=np.uint8), "name": self.strings.ids(names), "dims": self.strings.ids(dims),
            "thread": self._threads([c["thread"][i] for i in keep]), "start": start,
            "dur": integers([c["end"][i] for i in keep]) - start,
        }, len(keep))  # fmt: skip

    def _schema(self) -> str:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if table in self.present:
                found = dict(self.db.execute(f'SELECT name, value FROM "{table}"'))
                return str(found.get("EXPORT_SCHEMA_VERSION", "unknown"))
        return "unknown"

    def _devices(self) -> list[str]:
        if "TARGET_INFO_GPU" not in self.present or not self._has("TARGET_INFO_GPU", "name"):
            return []
        return sorted({str(n) for (n,) in self.db.execute("SELECT name FROM TARGET_INFO_GPU") if n})

    def _base(self) -> int | None:
        table = "TARGET_INFO_SESSION_START_TIME"
        if table not in self.present:
            return None
        return self.db.execute(f"SELECT utcEpochNs FROM {table}").fetchone()[0]


def _process(ids: list[int | None]) -> np.ndarray:
    """Process ids out of the serialized ids of processes and threads; 0 for unknown."""
    return np.array([0 if g is None else g >> 24 & 0xFFFFFF for g in ids], dtype=np.int64)
