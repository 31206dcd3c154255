"""Whole Kineto events as bytes in, columns out. Imports neither polars nor torch: it also runs in worker processes."""

from __future__ import annotations

import gc
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec.structs import astuple

from atrex.traces.readers import kineto_repair

# Kineto's categories and those of torch 1.8 to 1.10, which wrote them as words.
KINDS = {
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset",
    "cuda_runtime": "launch", "cuda_driver": "launch", "Runtime": "launch", "Driver": "launch",
    "cpu_op": "op", "Operator": "op",
    "python_function": "frame",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device_annotation",
}  # fmt: skip
DEVICE_KINDS = ("kernel", "memcpy", "memset")
HOST_KINDS = ("op", "frame", "annotation")
_KIND_LIST = (*DEVICE_KINDS, "launch", *HOST_KINDS, "device_annotation")
_CODES = defaultdict(lambda: -1, {category: _KIND_LIST.index(kind) for category, kind in KINDS.items()})
# A float64 holds a nanosecond of a timestamp in microseconds below this; above it (absolute epochs) digits are lost.
EXACT_BELOW_US = 2**53 / 1000

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NONE = Raw(b"")


# Fields stand in the order in which Kineto writes them: msgspec looks for the next key at the next field first.
class _Args(Struct, gc=False):
    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | None = None
    bytes: int | str | None = None
    kernel: str | None = None
    grid: Raw = _NONE
    block: Raw = _NONE
    graph: int | None = msgspec.field(name="graph id", default=None)
    node: int | None = msgspec.field(name="graph node id", default=None)
    concrete: Raw = msgspec.field(name="Concrete Inputs", default=_NONE)
    dtypes: Raw = msgspec.field(name="Input type", default=_NONE)
    dims: Raw = msgspec.field(name="Input Dims", default=_NONE)
    name: str | None = None  # of metadata events
    old_dims: Raw = msgspec.field(name="Input dims", default=_NONE)  # torch 1.8 to 1.10


class _Event(Struct, gc=False):
    ph: str
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


class _ExactEvent(Struct, gc=False):
    ts: Raw = _NONE
    dur: Raw = _NONE


_EVENTS = msgspec.json.Decoder(list[_Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[_ExactEvent])
_NO_ARGS = _Args()


def _one_spacing(raw: bytes) -> str:
    """JSON as `json.dumps` spaces it, so that a value is the same string in every dialect."""
    try:
        return json.dumps(msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw.decode("utf-8", "replace")


class Interner(dict):
    """str or raw JSON bytes -> id in order of appearance.

    Addresses of objects are dropped from names: they would make every call distinct.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strings: list[str] = []
        self._sent = 0

    def __missing__(self, key: str | bytes) -> int:
        if isinstance(key, bytes):
            number = self[key] = self[_one_spacing(key)]
            return number
        if " at 0x" in key:
            plain = _ADDRESS.sub("", key)
            if plain != key:
                return self[plain]
        number = self[key] = len(self.strings)
        self.strings.append(key)
        return number

    def fresh(self) -> list[str]:
        """The strings added since the last call."""
        new, self._sent = self.strings[self._sent :], len(self.strings)
        return new


@dataclass
class Batch:
    """Columns of the events of one piece. Times in nanoseconds; strings, threads and raw JSON as interned ids."""

    columns: dict[str, dict[str, np.ndarray]]
    strings: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    repaired: int = 0
    lost: int = 0
    lost_bytes: int = 0
    tail: bytes | None = None  # what follows the end of the event array, where it lies in this piece
    examples: list[str] = field(default_factory=list)


class PieceDecoder:
    """Decodes pieces of whole events, keeping one table of strings over all of them."""

    def __init__(self) -> None:
        self.intern = Interner()

    def decode(self, piece: bytes) -> Batch:
        """Columns of a piece: events between commas, perhaps followed by the end of the array and more keys."""
        batch = Batch(columns={}, strings=[])
        # The collector would walk the million tuples that follow again and again; none of them is part of a cycle.
        collecting = gc.isenabled()
        gc.disable()
        try:
            try:
                columns = _columns(piece)
            except (msgspec.DecodeError, UnicodeDecodeError):
                texts = kineto_repair.salvage(piece, batch)
                try:
                    columns = _columns(b",".join(texts))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    columns = _lenient_columns(texts, batch)
            self._group(columns, batch)
        finally:
            if collecting:
                gc.enable()
        batch.strings = self.intern.fresh()
        return batch

    def _group(self, events: _Columns, batch: Batch) -> None:
        counts = batch.counts
        codes = np.fromiter(map(_CODES.__getitem__, events.cat), dtype=np.int8, count=len(events.cat))
        codes[~np.fromiter(map("X".__eq__, events.ph), dtype=bool, count=len(events.ph))] = -1
        self._open_ended(events, batch)
        for i in np.flatnonzero(codes < 0).tolist():
            phase, cat = events.ph[i], events.cat[i]
            key = f"{phase}:{cat}" if cat else phase
            counts[key] = counts.get(key, 0) + 1
            if phase == "M" and events.name[i] == "process_name" and events.args[i] and events.args[i].name:
                batch.processes[str(events.pid[i])] = events.args[i].name
        names = np.fromiter(map(self.intern.__getitem__, events.name), dtype=np.int32, count=len(events.name))
        for code, kind in enumerate(_KIND_LIST):
            picked = np.flatnonzero(codes == code)
            if not picked.size:
                continue
            counts[kind] = counts.get(kind, 0) + picked.size
            columns = {"name": names[picked], "start": events.start[picked], "dur": events.duration[picked]}
            rows = picked.tolist()
            if kind in DEVICE_KINDS:
                self._device(events, rows, columns)
            elif kind == "device_annotation":
                columns["device"] = _integers([_number(events.pid[i]) for i in rows])
                columns["stream"] = _integers([_number(events.tid[i]) for i in rows])
            else:
                columns["thread"] = self._threads(events, picked)
                if kind == "launch":
                    self._launch(events, rows, columns)
                elif kind == "op":
                    args = [events.args[i] or _NO_ARGS for i in rows]
                    columns["dims"] = self._raw([a.old_dims if a.dims is _NONE else a.dims for a in args])
                    columns["dtypes"] = self._raw([a.dtypes for a in args])
                    columns["concrete"] = self._raw([a.concrete for a in args])
            batch.columns[kind] = columns

    def _open_ended(self, events: _Columns, batch: Batch) -> None:
        """Ranges written as two events, begin and end (samplers of Python frames do): paired by the reader."""
        for phase, kind in (("B", "begin"), ("E", "end")):
            rows = [i for i, p in enumerate(events.ph) if p == phase] if phase in events.ph else []
            if rows:
                picked = np.array(rows)
                names = [self.intern[events.name[i]] for i in rows]
                ops = [KINDS.get(events.cat[i]) == "op" for i in rows]
                batch.columns[kind] = {
                    "name": np.array(names, dtype=np.int32), "start": events.start[picked],
                    "thread": self._threads(events, picked), "op": np.array(ops, dtype=bool),
                }  # fmt: skip

    def _device(self, events: _Columns, rows: list[int], columns: dict[str, np.ndarray]) -> None:
        args = [events.args[i] or _NO_ARGS for i in rows]
        device = [events.pid[i] if a.device is None else a.device for i, a in zip(rows, args, strict=True)]
        stream = [events.tid[i] if a.stream is None else a.stream for i, a in zip(rows, args, strict=True)]
        columns["device"] = _integers([_number(v) for v in device])
        columns["stream"] = _integers([_number(v) for v in stream])
        columns["correlation"] = _integers([a.correlation for a in args])
        columns["bytes"] = _integers([_number(a.bytes) for a in args])
        columns["graph"] = _integers([a.graph for a in args])
        columns["node"] = _integers([a.node for a in args])
        columns["grid"] = self._raw([a.grid for a in args])
        columns["block"] = self._raw([a.block for a in args])

    def _launch(self, events: _Columns, rows: list[int], columns: dict[str, np.ndarray]) -> None:
        intern = self.intern
        args = [events.args[i] or _NO_ARGS for i in rows]
        columns["correlation"] = _integers([a.correlation for a in args])
        columns["kernel"] = np.array([-1 if a.kernel is None else intern[a.kernel] for a in args], dtype=np.int32)
        columns["grid"] = self._raw([a.grid for a in args])
        columns["block"] = self._raw([a.block for a in args])

    def _threads(self, events: _Columns, picked: np.ndarray) -> np.ndarray:
        """Ids of "pid/tid" for the picked events."""
        pid, tid = events.ids()
        if pid is None or tid is None:
            pairs = [(events.pid[i], events.tid[i]) for i in picked.tolist()]
            return np.array([self.intern[f"{p}/{t}"] for p, t in pairs], dtype=np.int32)
        both = np.stack([pid[picked], tid[picked]])
        if (both == both[:, :1]).all():
            return np.full(picked.size, self.intern[f"{both[0, 0]}/{both[1, 0]}"], dtype=np.int32)
        pairs, inverse = np.unique(both, axis=1, return_inverse=True)
        ids = np.array([self.intern[f"{p}/{t}"] for p, t in pairs.T.tolist()], dtype=np.int32)
        return ids[inverse.reshape(-1)]

    def _raw(self, values: list[Raw]) -> np.ndarray:
        intern = self.intern
        return np.array([-1 if v is _NONE else intern[bytes(v)] for v in values], dtype=np.int32)


class _Columns:
    """Events by field instead of by event."""

    def __init__(self, events: list[_Event]) -> None:
        if events:
            self.ph, self.cat, self.name, self.pid, self.tid, ts, dur, self.args = zip(
                *map(astuple, events), strict=True
            )
        else:
            self.ph = self.cat = self.name = self.pid = self.tid = ts = dur = self.args = ()
        self.ts = np.array(ts, dtype=np.float64)
        self.start = np.rint(self.ts * 1000).astype(np.int64)
        self.duration = np.rint(np.array(dur, dtype=np.float64) * 1000).astype(np.int64)

    def set_exact(self, times: list[tuple[int, ...]]) -> None:
        exact = np.array(times, dtype=np.int64).reshape(-1, 2)
        self.start, self.duration = exact[:, 0], exact[:, 1]

    def ids(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(pids, tids) as integers; None for one that holds text."""
        if not hasattr(self, "_ids"):
            arrays = [np.array(values) for values in (self.pid, self.tid)]
            self._ids = tuple(a if a.dtype.kind == "i" else None for a in arrays)
        return self._ids


def _columns(piece: bytes) -> _Columns:
    text = b"[" + piece + b"]"
    columns = _Columns(_EVENTS.decode(text))
    if columns.ts.size and columns.ts.max() >= EXACT_BELOW_US:
        columns.set_exact([_nanoseconds(e.ts, e.dur) for e in _EXACT_EVENTS.decode(text)])
    return columns


def _lenient_columns(texts: list[bytes], batch: Batch) -> _Columns:
    events, times = [], []
    for text in texts:
        event = _lenient(text)
        if event is None:  # well-formed, but not UTF-8
            mended = kineto_repair.repair(text)
            event = None if mended is None else _lenient(mended)
            batch.repaired += event is not None
        if event is None:
            batch.lost += 1
            batch.lost_bytes += len(text)
            continue
        events.append(event[0])
        times.append(event[1])
    columns = _Columns(events)
    columns.set_exact(times)
    return columns


def _integers(values: list[int | None]) -> np.ndarray:
    return np.array([-1 if v is None else v for v in values], dtype=np.int64)


def _number(value: int | str | None) -> int | None:
    """The integer in a field that old files write as text: 7, "7", "stream 7", "0x7"."""
    if value is None or isinstance(value, int):
        return value
    try:
        return int(value, 0)
    except ValueError:
        digits = re.search(r"\d+", value)
        return int(digits[0]) if digits else None


def _nanoseconds(*values: Raw | str | int | float | None) -> tuple[int, ...]:
    """Microseconds as written, to integer nanoseconds without passing through a float. Absent ones are 0."""
    found = []
    for value in values:
        text = bytes(value).decode() if isinstance(value, (Raw, bytes, memoryview)) else str(value or 0)
        text = text.strip('" ') or "0"
        try:
            found.append(int((Decimal(text) * 1000).to_integral_value()))
        except (InvalidOperation, ValueError, OverflowError):
            found.append(0)
    return tuple(found)


class _Loose(Struct, gc=False):
    """An event whose fields may have any type."""

    ph: Any
    name: Any = ""
    cat: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: Raw = _NONE
    dur: Raw = _NONE
    args: Raw = _NONE


_LOOSE = msgspec.json.Decoder(_Loose)
_LOOSE_ARGS = msgspec.json.Decoder(dict[str, Raw])
_ARG_FIELDS = {
    "correlation": "correlation", "device": "device", "stream": "stream", "bytes": "bytes", "kernel": "kernel",
    "grid": "grid", "block": "block", "Input Dims": "dims", "Input dims": "dims", "Input type": "dtypes",
    "Concrete Inputs": "concrete", "graph id": "graph", "graph node id": "node", "name": "name",
}  # fmt: skip
_RAW_FIELDS = {"grid", "block", "dims", "dtypes", "concrete"}


def _lenient(text: bytes) -> tuple[_Event, tuple[int, int]] | None:
    """One event with whatever types its fields have; None where it is not one."""
    try:
        loose = _LOOSE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    args = _Args()
    try:
        values = _LOOSE_ARGS.decode(loose.args) if bytes(loose.args) else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        values = {}
    for key, raw in values.items():
        name = _ARG_FIELDS.get(key)
        if name is None:
            continue
        if name in _RAW_FIELDS:
            setattr(args, name, raw)
            continue
        value = msgspec.json.decode(raw)
        if name in ("correlation", "graph", "node"):
            value = _number(value) if isinstance(value, (int, str)) else None
        elif name in ("kernel", "name"):
            value = None if value is None else str(value)
        elif not isinstance(value, (int, str)):
            value = None
        setattr(args, name, value)
    start, duration = _nanoseconds(loose.ts, loose.dur)
    event = _Event(
        ph=str(loose.ph), name=str(loose.name or ""), cat=str(loose.cat or ""), pid=_plain(loose.pid),
        tid=_plain(loose.tid), args=args,
    )  # fmt: skip
    return event, (start, duration)


def _plain(value: Any) -> int | str:
    return value if isinstance(value, (int, str)) else str(value)
