"""Whole Kineto events as bytes in, columns out. Imports neither polars nor torch: it also runs in worker processes."""

from __future__ import annotations

import gc
import json
import re
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import repeat
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

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
_PH, _CAT = attrgetter("ph"), attrgetter("cat")


def one_spacing(raw: bytes) -> str:
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
            number = self[key] = self[one_spacing(key)]
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

    def decode(self, array: bytes | bytearray) -> Batch:
        """Columns of a piece in brackets: events between commas, perhaps followed by the array's end and more keys."""
        batch = Batch(columns={}, strings=[])
        # The collector would walk the million tuples that follow again and again; none of them is part of a cycle.
        collecting = gc.isenabled()
        gc.disable()
        try:
            times: _Times = _FloatTimes(array)
            try:
                events = _EVENTS.decode(array)
            except (msgspec.DecodeError, UnicodeDecodeError):
                texts = kineto_repair.salvage(bytes(memoryview(array)[1:-1]), batch)
                try:
                    times = _FloatTimes(b"[" + b",".join(texts) + b"]")
                    events = _EVENTS.decode(times.array)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    events, times = _lenient_events(texts, batch)
            self._group(events, times, batch)
        finally:
            if collecting:
                gc.enable()
        batch.strings = self.intern.fresh()
        return batch

    def _group(self, events: list[_Event], times: _Times, batch: Batch) -> None:
        counts, n = batch.counts, len(events)
        codes = np.fromiter(map(_CODES.__getitem__, map(_CAT, events)), dtype=np.int8, count=n)
        phases = set(map(_PH, events))
        if not phases <= {"X", "s", "f", "t", "M"}:  # flows and metadata have categories of their own
            codes[~np.fromiter((e.ph == "X" for e in events), dtype=bool, count=n)] = -1
        for phase, kind in (("B", "begin"), ("E", "end")):
            if phase in phases:
                rows = [i for i, e in enumerate(events) if e.ph == phase]
                self._open_ended(kind, rows, events, times, batch)
        rest = [events[i] for i in np.flatnonzero(codes < 0).tolist()]
        kinds = Counter(zip(map(_PH, rest), map(_CAT, rest), strict=True))
        for (phase, cat), count in kinds.items():
            counts[f"{phase}:{cat}" if cat else phase] = count
        for e in rest if ("M", "") in kinds else ():
            if e.name == "process_name" and e.args is not None and e.args.name:
                batch.processes[str(e.pid)] = e.args.name
        for code, kind in enumerate(_KIND_LIST):
            rows = np.flatnonzero(codes == code).tolist()
            if not rows:
                continue
            chosen = [events[i] for i in rows]
            counts[kind] = counts.get(kind, 0) + len(chosen)
            columns = {"name": self._names(chosen)}
            columns["start"], columns["dur"] = times.of(chosen, rows)
            if kind in DEVICE_KINDS:
                self._device(chosen, columns)
            elif kind == "device_annotation":
                columns["device"] = _integers([e.pid for e in chosen])
                columns["stream"] = _integers([e.tid for e in chosen])
            else:
                columns["thread"] = self._threads(chosen)
                if kind == "launch":
                    self._launch(chosen, columns)
                elif kind == "op":
                    args = [e.args or _NO_ARGS for e in chosen]
                    columns["dims"] = self._raw([a.old_dims if a.dims is _NONE else a.dims for a in args])
                    columns["dtypes"] = self._raw([a.dtypes for a in args])
                    columns["concrete"] = self._raw([a.concrete for a in args])
            batch.columns[kind] = columns

    def _open_ended(self, kind: str, rows: list[int], events: list[_Event], times: _Times, batch: Batch) -> None:
        """Ranges written as two events, begin and end (samplers of Python frames do): paired by the reader."""
        chosen = [events[i] for i in rows]
        batch.columns[kind] = {
            "name": self._names(chosen), "start": times.of(chosen, rows)[0], "thread": self._threads(chosen),
            "op": np.array([KINDS.get(e.cat) == "op" for e in chosen], dtype=bool),
        }  # fmt: skip

    def _device(self, events: list[_Event], columns: dict[str, np.ndarray]) -> None:
        args = [e.args or _NO_ARGS for e in events]
        columns["device"] = _integers(
            [e.pid if a.device is None else a.device for e, a in zip(events, args, strict=True)]
        )
        columns["stream"] = _integers(
            [e.tid if a.stream is None else a.stream for e, a in zip(events, args, strict=True)]
        )
        columns["correlation"] = _integers([a.correlation for a in args])
        columns["bytes"] = _integers([a.bytes for a in args])
        columns["graph"] = _integers([a.graph for a in args])
        columns["node"] = _integers([a.node for a in args])
        columns["grid"] = self._raw([a.grid for a in args])
        columns["block"] = self._raw([a.block for a in args])

    def _launch(self, events: list[_Event], columns: dict[str, np.ndarray]) -> None:
        intern = self.intern
        args = [e.args or _NO_ARGS for e in events]
        columns["correlation"] = _integers([a.correlation for a in args])
        columns["kernel"] = np.array([-1 if a.kernel is None else intern[a.kernel] for a in args], dtype=np.int32)
        columns["grid"] = self._raw([a.grid for a in args])
        columns["block"] = self._raw([a.block for a in args])

    def _names(self, events: list[_Event]) -> np.ndarray:
        intern = self.intern
        return np.fromiter([intern[e.name] for e in events], dtype=np.int32, count=len(events))

    def _threads(self, events: list[_Event]) -> np.ndarray:
        """Ids of "pid/tid". Nearly always all events of a piece are of one thread."""
        pids, tids = [e.pid for e in events], [e.tid for e in events]
        if pids.count(pids[0]) == len(pids) and tids.count(tids[0]) == len(tids):
            return np.full(len(events), self.intern[f"{pids[0]}/{tids[0]}"], dtype=np.int32)
        pairs = list(zip(pids, tids, strict=True))
        known = {pair: self.intern[f"{pair[0]}/{pair[1]}"] for pair in dict.fromkeys(pairs)}
        return np.fromiter([known[pair] for pair in pairs], dtype=np.int32, count=len(pairs))

    def _raw(self, values: list[Raw]) -> np.ndarray:
        if values.count(_NONE) == len(values):
            return np.full(len(values), -1, dtype=np.int32)
        intern = self.intern
        return np.array([-1 if v is _NONE else intern[bytes(v)] for v in values], dtype=np.int32)


class _FloatTimes:
    """(start, duration) in nanoseconds of events, from their floats; read again digit by digit where these are too
    coarse.
    """

    def __init__(self, array: bytes | bytearray) -> None:
        self.array = array
        self._exact: _ExactTimes | None = None

    def of(self, events: list[_Event], rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        start = np.fromiter([e.ts for e in events], dtype=np.float64, count=len(events))
        if np.abs(start).max() >= EXACT_BELOW_US:
            if self._exact is None:
                decoded = _EXACT_EVENTS.decode(self.array)
                self._exact = _ExactTimes([_nanoseconds(e.ts, e.dur) for e in decoded])
            return self._exact.of(events, rows)
        duration = np.fromiter([e.dur for e in events], dtype=np.float64, count=len(events))
        duration[np.abs(duration) >= EXACT_BELOW_US] = 0  # three centuries: no duration
        return tuple(np.rint(values * 1000).astype(np.int64) for values in (start, duration))


class _ExactTimes:
    """The same from integers of nanoseconds, by position."""

    def __init__(self, times: list[tuple[int, ...]]) -> None:
        self.times = np.array(times, dtype=np.int64).reshape(-1, 2)

    def of(self, events: list[_Event], rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        picked = self.times[rows]
        return picked[:, 0], picked[:, 1]


_Times = _FloatTimes | _ExactTimes


def _lenient_events(texts: list[bytes], batch: Batch) -> tuple[list[_Event], _ExactTimes]:
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
    return events, _ExactTimes(times)


def _integers(values: list[int | str | None]) -> np.ndarray:
    """int64 of a field that old files write as text, -1 for absent."""
    if values.count(None) == len(values):
        return np.full(len(values), -1, dtype=np.int64)
    with suppress(TypeError, ValueError, OverflowError):
        if not any(map(isinstance, values, repeat(str))):
            return np.fromiter(values, dtype=np.int64, count=len(values))
    numbers = [_number(v) for v in values]
    return np.array([-1 if n is None or abs(n) >> 63 else n for n in numbers], dtype=np.int64)


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
    """Microseconds as written, to integer nanoseconds without passing through a float. Absent and absurd ones are 0."""
    found = []
    for value in values:
        text = bytes(value).decode() if isinstance(value, (Raw, bytes, memoryview)) else str(value or 0)
        text = text.strip('" ') or "0"
        try:
            number = int((Decimal(text) * 1000).to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            number = 0
        found.append(0 if abs(number) >> 63 else number)
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
