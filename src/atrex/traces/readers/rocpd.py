"""rocpd, ROCm's own SQLite format (rocprofv3 writes it by default since ROCm 7.0).

Tables carry the session's id at the end of their names, views do not; a file merged from several sessions has several
of each. Two layouts are in use: times in the dispatch itself, or in a table of time stamps with a table of tracks.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import polars as pl

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress
from atrex.traces.readers.sqlite import columns, integers, opened

FORMAT = "rocpd"
_DISPATCH = re.compile(r"^rocpd_kernel_dispatch(.*)$")


def recognizes(head: Head) -> bool:
    return any(_DISPATCH.match(t) for t in head.tables)


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The records of a rocpd file. Raises UserError if it holds no dispatch (as thread traces, `--att`, do not)."""
    with opened(path) as db:
        tables = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        sessions = sorted(m[1] for t in tables if (m := _DISPATCH.match(t)))
        if not sessions:  # views alone
            sessions = [""]
        strings, parts, names = raw.Strings(), [], set()
        for number, suffix in enumerate(sessions):
            parts.append(_Session(db, suffix, number, strings).frames())
            agents = f'"rocpd_info_agent{suffix}"'
            query = f"SELECT COALESCE(product_name, name) FROM {agents} WHERE type = 'GPU'"
            names |= {n for (n,) in db.execute(query) if n}
        version = dict(db.execute(f'SELECT tag, value FROM "rocpd_metadata{sessions[0]}"')).get("schema_version", "?")
    device, launches, host = (pl.concat(frames) for frames in zip(*parts, strict=True))
    if not len(device):
        advice = "record with `rocprofv3 --kernel-trace --hip-trace --marker-trace`"
        raise UserError(f"{path}: no kernel dispatch in it: {advice}")
    meta = raw.Meta(
        format=FORMAT, dialect=f"schema {version}", vendor="amd", devices=sorted(names),
        counts={"dispatch and copy": len(device), "region": len(launches) + len(host)},
    )  # fmt: skip
    return raw.RawTrace(path, meta, strings, device, launches, host, raw.empty(raw.DEVICE_ANNOTATIONS))


class _Session:
    """One session's tables."""

    def __init__(self, db: sqlite3.Connection, suffix: str, number: int, strings: raw.Strings) -> None:
        self.db, self.suffix, self.process, self.strings = db, suffix, number, strings

    def _table(self, name: str) -> str:
        return f'"rocpd_{name}{self.suffix}"'

    def _has(self, table: str, column: str) -> bool:
        return any(r[1] == column for r in self.db.execute(f"PRAGMA table_info({self._table(table)})"))

    def _exists(self, table: str) -> bool:
        return bool(self.db.execute(f"PRAGMA table_info({self._table(table)})").fetchone())

    def _placed(self, table: str) -> tuple[str, str]:
        """(expressions for start, end, pid, tid, agent, queue, stream of `x`, the joins they need)."""
        if self._has(table, "start"):
            agents = [f"x.{c}" for c in ("agent_id", "dst_agent_id") if self._has(table, c)]
            agent = agents[0] if agents else "NULL"
            queue, stream = (f"x.{c}" if self._has(table, c) else "NULL" for c in ("queue_id", "stream_id"))
            return f"x.start, x.end, x.pid, x.tid, {agent}, {queue}, {stream}", ""
        joins = (
            f" JOIN {self._table('timestamp')} b ON b.id = x.start_id"
            f" JOIN {self._table('timestamp')} e ON e.id = x.end_id"
            f" JOIN {self._table('track')} k ON k.id = x.track_id"
        )
        return "b.value, e.value, k.pid, k.tid, k.agent_id, k.queue_id, k.stream_id", joins

    def _event(self) -> str:
        return f"LEFT JOIN {self._table('event')} v ON v.id = x.event_id"

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        launches, host = self._regions()
        return pl.concat([self._dispatches(), self._copies()]), launches, host

    def _gpu_index(self) -> dict[int, int]:
        """agent id -> index among the GPUs."""
        order = "type_index" if self._has("info_agent", "type_index") else "id"
        rows = self.db.execute(f"SELECT id FROM {self._table('info_agent')} WHERE type = 'GPU' ORDER BY {order}")
        return {agent: i for i, (agent,) in enumerate(rows)}

    def _dispatches(self) -> pl.DataFrame:
        place, joins = self._placed("kernel_dispatch")
        c = columns(self.db, f"""
            SELECT {place}, COALESCE(s.display_name, s.kernel_name), v.correlation_id,
                   x.workgroup_size_x, x.workgroup_size_y, x.workgroup_size_z,
                   x.grid_size_x, x.grid_size_y, x.grid_size_z
            FROM {self._table("kernel_dispatch")} x {joins}
            LEFT JOIN {self._table("info_kernel_symbol")} s ON s.id = x.kernel_id {self._event()}
            """, ("start", "end", "pid", "tid", "agent", "queue", "stream", "name", "correlation",
                  "bx", "by", "bz", "gx", "gy", "gz"))  # fmt: skip
        block = list(zip(c["bx"], c["by"], c["bz"], strict=True))
        grid = [  # in work items, as HSA counts
            [-(-g // max(b, 1)) for g, b in zip(gs, bs, strict=True)]
            for gs, bs in zip(zip(c["gx"], c["gy"], c["gz"], strict=True), block, strict=True)
        ]
        return self._device(c, raw.KERNEL, [n or "[unknown]" for n in c["name"]], {
            "grid": self.strings.ids(map(json.dumps, grid)),
            "block": self.strings.ids(json.dumps(list(b)) for b in block),
        })  # fmt: skip

    def _copies(self) -> pl.DataFrame:
        if not self._exists("memory_copy"):
            return raw.empty(raw.DEVICE)
        place, joins = self._placed("memory_copy")
        c = columns(self.db, f"""
            SELECT {place}, n.string, v.correlation_id, x.size FROM {self._table("memory_copy")} x {joins}
            LEFT JOIN {self._table("string")} n ON n.id = x.name_id {self._event()}
            """, ("start", "end", "pid", "tid", "agent", "queue", "stream", "name", "correlation",
                  "bytes"))  # fmt: skip
        names = [f"Memcpy {n}" for n in c["name"]]
        return self._device(c, raw.MEMCPY, names, {"bytes": integers(c["bytes"])})

    def _device(self, c: dict[str, list], kind: int, names: list[str], more: dict[str, np.ndarray]) -> pl.DataFrame:
        start = integers(c["start"])
        index = self._gpu_index()
        queue = c["stream"] if any(c["stream"]) else c["queue"]
        return raw.frame(raw.DEVICE, {
            "kind": np.full(len(start), kind), "name": self.strings.ids(names), "start": start,
            "dur": integers(c["end"]) - start, "device": integers([index.get(a, -1) for a in c["agent"]]),
            "stream": integers(queue), "correlation": integers(c["correlation"]),
            "process": np.full(len(start), self.process), **more,
        }, len(start))  # fmt: skip

    def _regions(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(API calls as launches, ranges of roctx as annotations)."""
        if not self._exists("region"):
            return raw.empty(raw.LAUNCHES), raw.empty(raw.HOST)
        place, joins = self._placed("region")
        c = columns(self.db, f"""
            SELECT {place}, n.string, v.correlation_id, g.string, v.extdata FROM {self._table("region")} x {joins}
            LEFT JOIN {self._table("string")} n ON n.id = x.name_id {self._event()}
            LEFT JOIN {self._table("string")} g ON g.id = v.category_id
            """, ("start", "end", "pid", "tid", "a", "q", "s", "name", "correlation", "category", "more"))  # fmt: skip
        marker = [bool(g and "MARKER" in g.upper()) for g in c["category"]]
        rows = {wanted: [i for i, m in enumerate(marker) if m is wanted] for wanted in (False, True)}

        def base(picked: list[int], texts: list[str]) -> dict[str, np.ndarray]:
            start = integers([c["start"][i] for i in picked])
            return {
                "name": self.strings.ids(texts), "start": start,
                "dur": integers([c["end"][i] for i in picked]) - start,
                "thread": self.strings.ids(f"{c['pid'][i]}/{c['tid'][i]}" for i in picked),
            }  # fmt: skip

        calls, ranges = rows[False], rows[True]
        launches = raw.frame(raw.LAUNCHES, {
            **base(calls, [c["name"][i] for i in calls]),
            "correlation": integers([c["correlation"][i] for i in calls]),
            "process": np.full(len(calls), self.process),
        }, len(calls))  # fmt: skip
        host = raw.frame(raw.HOST, base(ranges, [_message(c["name"][i], c["more"][i]) for i in ranges]), len(ranges))
        return launches, host


def _message(name: str, more: str | None) -> str:
    """The text of a roctx range: its event's extra data say it where the name is that of the call."""
    try:
        found = json.loads(more or "{}").get("message")
    except (ValueError, AttributeError):
        found = None
    return found or name
