"""Kineto, the profiler behind torch.profiler: Chrome JSON, plain or gzip, of every version since torch 1.8.

The file is cut at event boundaries and decoded piece by piece, large ones in several threads or processes, so that
memory stays near the size of the columns. Text that is no event costs that event; how many were mended or lost is in
`Meta.loss`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress
from atrex.traces.readers.kineto_decode import DEVICE_KINDS, HOST_KINDS, Batch
from atrex.traces.readers.kineto_pieces import Piece
from atrex.traces.readers.kineto_stream import decoding
from atrex.traces.readers.kineto_worker import load_piece

FORMAT = "kineto"
_ID_COLUMNS = {"name", "thread", "kernel", "grid", "block", "dims", "dtypes", "concrete"}
_HOST_CODE = {"annotation": raw.ANNOTATION, "frame": raw.FRAME, "op": raw.OP}


def recognizes(head: Head) -> bool:
    """Chrome's trace format: an object with traceEvents, perhaps further on, or the bare array of events."""
    start = head.start.lstrip()
    if start.startswith(b"["):
        return b'"ph"' in start
    return start.startswith(b"{") and b'"rocprofiler-sdk-tool"' not in start[:4096]


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The records of a Kineto file. `jobs` processes decode it; `progress` gets bytes done and bytes in all.

    Raises UserError if the file holds no event array or no event at all.
    """
    collected = _Collected(raw.Strings())
    tail: list[bytes] = []
    rest: list[Piece] = []  # pieces after the end of the events
    with decoding(path, jobs) as found:
        stream = found.stream
        for worker, piece, batch in found:
            if tail:
                rest.append(piece)
                continue
            collected.add(worker, batch)
            if batch.tail is not None:
                tail.append(batch.tail)
            if progress is not None:
                progress(min(stream.position, stream.size), stream.size)
    trailer = b",".join([*tail, *(bytes(load_piece(piece)[1:-1]) for piece in rest)])
    header = _keys(stream.header, trailer)
    loss = collected.loss
    loss.truncated = not tail or stream.damage is not None
    trace = collected.trace(path, header)
    if stream.damage:
        trace.meta.notes.append(stream.damage)
    if not sum(trace.meta.counts.values()):
        raise UserError(f"{path}: the event array is empty or unreadable ({loss.lost} events lost)")
    return trace


class _Collected:
    """Batches of all pieces, joined: local string ids become ids of one table."""

    def __init__(self, strings: raw.Strings) -> None:
        self.strings = strings
        self.loss = raw.Loss()
        self.counts: dict[str, int] = {}
        self.processes: dict[str, str] = {}
        self._maps: dict[int, list[int]] = {}
        self._parts: dict[str, dict[str, list[np.ndarray]]] = {}

    def add(self, worker: int, batch: Batch) -> None:
        known = self._maps.setdefault(worker, [])
        known += [self.strings.id(text) for text in batch.strings]
        to_global = np.array([*known, -1], dtype=np.int32)  # -1 picks the last: no string stays no string
        for kind, columns in batch.columns.items():
            parts = self._parts.setdefault(kind, {})
            for name, values in columns.items():
                parts.setdefault(name, []).append(to_global[values] if name in _ID_COLUMNS else values)
        for kind, n in batch.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + n
        self.processes |= batch.processes
        loss = self.loss
        loss.repaired += batch.repaired
        loss.lost += batch.lost
        loss.lost_bytes += batch.lost_bytes
        loss.examples = [*loss.examples, *batch.examples][:3]

    def _frame(self, schema: dict[str, Any], kinds: Iterable[str], codes: dict[str, int]) -> pl.DataFrame:
        frames = []
        for kind in kinds:
            parts = self._parts.pop(kind, None)
            if parts is None:
                continue
            columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
            rows = len(columns["start"])
            if kind in codes:
                columns["kind"] = np.full(rows, codes[kind], dtype=np.uint8)
            frames.append(raw.frame(schema, columns, rows))
        return pl.concat(frames) if frames else raw.empty(schema)

    def _paired(self) -> pl.DataFrame:
        """Ranges out of begin and end events: an end closes the last begin that is open on its thread."""
        sides = []
        for kind, opens in (("begin", True), ("end", False)):
            parts = self._parts.pop(kind, {})
            columns = {name: np.concatenate(arrays) for name, arrays in parts.items()} if parts else {}
            if columns:
                sides.append(pl.DataFrame(columns).with_columns(opens=pl.lit(opens)))
        events = pl.concat(sides).sort(["thread", "start", "opens"], maintain_order=True)  # ends before begins
        change = pl.when(pl.col("opens")).then(1).otherwise(-1)
        # An end brings the depth down to what it was before its begin: both get the depth of the range.
        depth = change.cum_sum().over("thread") - pl.col("opens").cast(pl.Int32)
        events = events.with_columns(depth=depth).sort(["thread", "depth"], maintain_order=True)
        pairs = events.with_columns(
            end=pl.col("start").shift(-1), closed=~pl.col("opens").shift(-1),
            same=(pl.col("thread") == pl.col("thread").shift(-1)) & (pl.col("depth") == pl.col("depth").shift(-1)),
        ).filter(pl.col("opens") & pl.col("closed") & pl.col("same"))  # fmt: skip
        self.counts["frame"] = self.counts.get("frame", 0) + int((~pairs["op"]).sum())
        return raw.frame(raw.HOST, {
            "kind": np.where(pairs["op"].to_numpy(), raw.OP, raw.FRAME), "name": pairs["name"],
            "thread": pairs["thread"], "start": pairs["start"], "dur": pairs["end"] - pairs["start"],
        }, len(pairs))  # fmt: skip

    def trace(self, path: Path, header: dict[str, Any]) -> raw.RawTrace:
        device_codes = {kind: code for code, kind in enumerate(DEVICE_KINDS)}
        device = self._frame(raw.DEVICE, DEVICE_KINDS, device_codes)
        launches = self._frame(raw.LAUNCHES, ["launch"], {})
        host = self._frame(raw.HOST, HOST_KINDS, _HOST_CODE)
        if "begin" in self._parts:
            host = pl.concat([host, self._paired()])
        annotations = self._frame(raw.DEVICE_ANNOTATIONS, ["device_annotation"], {})
        meta = _meta(header, self)
        if _merged(launches, self.strings):
            meta.notes.append(
                "several processes use the same correlation ids: a file merged of several ranks, whose kernels cannot "
                "be told apart; import the ranks' own files"
            )
        return raw.RawTrace(path, meta, self.strings, device, launches, host, annotations)


def _merged(launches: pl.DataFrame, strings: raw.Strings) -> bool:
    """Whether launches of different processes share correlation ids."""
    threads = launches["thread"].unique().to_list()
    process = {t: strings[t].split("/")[0] for t in threads if t >= 0}
    if len(set(process.values())) < 2:
        return False
    ids = launches.filter(pl.col("correlation") >= 0).select(
        "correlation", process=pl.col("thread").replace_strict(process, default="", return_dtype=pl.String)
    )
    return ids.unique().height > ids["correlation"].n_unique()


def _keys(header: bytes, trailer: bytes) -> dict[str, Any]:
    """The keys around the event array. What cannot be parsed is left out: they say about the run, not what ran."""
    before = header.strip().rstrip(b",").rstrip().removeprefix(b"{")
    after = trailer.strip().removeprefix(b"]").strip().removeprefix(b",").strip()
    if not after.endswith(b"}"):
        after = b""
    found: dict[str, Any] = {}
    for body in (before, after.removesuffix(b"}")):
        try:
            found |= json.loads(b"{" + body + b"}", strict=False)
        except (ValueError, UnicodeDecodeError):
            continue
    return found


def _meta(header: dict[str, Any], collected: _Collected) -> raw.Meta:
    properties = header.get("deviceProperties") or []
    names = [str(d.get("name") or "") for d in properties if isinstance(d, dict)]
    amd = any(key in header for key in ("roctracer_version", "hip_runtime_version", "hip_driver_version"))
    nvidia = any(key in header for key in ("cupti_version", "cuda_runtime_version"))
    amd = amd or any("amd" in name.lower() for name in names) or any(d.get("warpSize") == 64 for d in properties)
    distributed = header.get("distributedInfo") or {}
    if not isinstance(distributed, dict):
        distributed = {}
    base = header.get("baseTimeNanoseconds")
    dialect = "kineto" if header.get("schemaVersion") else "chrome"
    if base is None and dialect == "kineto":
        dialect = "kineto, absolute time"
    return raw.Meta(
        format="kineto",
        dialect=dialect,
        vendor="amd" if amd else "nvidia" if nvidia or names else "",
        devices=sorted({name for name in names if name}),
        rank=distributed.get("rank"),
        world_size=distributed.get("world_size"),
        processes=collected.processes,
        base_ns=int(base) if isinstance(base, (int, float)) else None,
        counts=collected.counts,
        loss=collected.loss,
        has_stacks=bool(collected.counts.get("frame")),
        extra={key: header[key] for key in _KEPT if key in header and isinstance(header[key], (int, str))},
    )


_KEPT = (
    "cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version",
    "roctracer_version", "record_shapes", "with_stack", "trace_id", "traceName",
)  # fmt: skip
