"""rocprofv3's JSON (`*_results.json`): a list of processes, each with agents, kernel symbols and records by kind."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec import Struct, field

from atrex.errors import UserError
from atrex.traces import raw
from atrex.traces.readers import Head, Progress

FORMAT = "rocprofv3 json"


class _Handle(Struct, gc=False):
    handle: int = 0


class _Correlation(Struct, gc=False):
    internal: int = -1


class _Xyz(Struct, gc=False):
    x: int = 1
    y: int = 1
    z: int = 1


class _Dispatch(Struct, gc=False):
    agent_id: _Handle = field(default_factory=_Handle)
    queue_id: _Handle = field(default_factory=_Handle)
    kernel_id: int = -1
    workgroup_size: _Xyz = field(default_factory=_Xyz)
    grid_size: _Xyz = field(default_factory=_Xyz)


class _Kernel(Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    thread_id: int = 0
    correlation_id: _Correlation = field(default_factory=_Correlation)
    stream_id: _Handle = field(default_factory=_Handle)
    dispatch_info: _Dispatch = field(default_factory=_Dispatch)


class _Copy(Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = 0
    correlation_id: _Correlation = field(default_factory=_Correlation)
    dst_agent_id: _Handle = field(default_factory=_Handle)
    src_agent_id: _Handle = field(default_factory=_Handle)
    stream_id: _Handle = field(default_factory=_Handle)
    bytes: int = -1


class _Call(Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = 0
    correlation_id: _Correlation = field(default_factory=_Correlation)


class _Records(Struct):
    kernel_dispatch: list[_Kernel] = []
    hip_api: list[_Call] = []
    rccl_api: list[_Call] = []
    marker_api: list[_Call] = []
    memory_copy: list[_Copy] = []


class _Agent(Struct):
    id: _Handle
    type: int = 0
    name: str = ""
    product_name: str = ""


class _Symbol(Struct):
    kernel_id: int
    kernel_name: Any = ""
    formatted_kernel_name: Any = ""
    demangled_kernel_name: Any = ""


class _Kind(Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(Struct):
    key: int
    value: str = ""


class _Strings(Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Metadata(Struct):
    pid: int = 0


class _Process(Struct):
    metadata: _Metadata = field(default_factory=_Metadata)
    agents: list[_Agent] = []
    kernel_symbols: list[_Symbol] = []
    strings: _Strings = field(default_factory=_Strings)
    buffer_records: _Records = field(default_factory=_Records)


class _File(Struct):
    processes: list[_Process] = field(name="rocprofiler-sdk-tool", default_factory=list)


def recognizes(head: Head) -> bool:
    return b'"rocprofiler-sdk-tool"' in head.start[:4096]


def read(path: Path, jobs: int = 1, progress: Progress | None = None) -> raw.RawTrace:
    """The records of a rocprofv3 JSON file.

    Raises UserError if it is damaged (unlike a Kineto file it names kernels at its end, so a part of it is of no use)
    or holds no dispatch.
    """
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        file = msgspec.json.decode(data, type=_File)
    except (EOFError, zlib.error, gzip.BadGzipFile, msgspec.DecodeError, OSError) as error:
        raise UserError(f"{path}: not a whole rocprofv3 JSON file: {error}") from None
    strings, parts, devices, counts = raw.Strings(), [], set(), {}
    for number, process in enumerate(file.processes):
        parts.append(_frames(process, number, strings))
        devices |= {a.product_name or a.name for a in process.agents if a.type == 2}
        for kind in _Records.__struct_fields__:
            counts[kind] = counts.get(kind, 0) + len(getattr(process.buffer_records, kind))
    if not counts.get("kernel_dispatch"):
        raise UserError(f"{path}: no kernel dispatch in it: record with `rocprofv3 --kernel-trace --hip-trace`")
    device, launches, host = (pl.concat(frames) for frames in zip(*parts, strict=True))
    meta = raw.Meta(format=FORMAT, vendor="amd", devices=sorted(devices), counts=counts)
    return raw.RawTrace(path, meta, strings, device, launches, host, raw.empty(raw.DEVICE_ANNOTATIONS))


def _frames(process: _Process, number: int, strings: raw.Strings) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    records, pid = process.buffer_records, process.metadata.pid
    gpus = {a.id.handle: i for i, a in enumerate(a for a in process.agents if a.type == 2)}
    names = {s.kernel_id: _symbol(s) for s in process.kernel_symbols}
    kinds = process.strings.buffer_records

    def operation(kind: int, number: int) -> str:
        if 0 <= kind < len(kinds) and 0 <= number < len(kinds[kind].operations):
            return kinds[kind].operations[number]
        return "[unknown]"

    kernels = records.kernel_dispatch
    streams = any(k.stream_id.handle for k in kernels)
    blocks = [k.dispatch_info.workgroup_size for k in kernels]
    grids = [  # HSA counts work items; a grid is counted in blocks everywhere else
        [-(-g.x // max(b.x, 1)), -(-g.y // max(b.y, 1)), -(-g.z // max(b.z, 1))]
        for g, b in zip((k.dispatch_info.grid_size for k in kernels), blocks, strict=True)
    ]
    device = raw.frame(raw.DEVICE, {
        "kind": np.full(len(kernels), raw.KERNEL), "process": np.full(len(kernels), number),
        "name": strings.ids(names.get(k.dispatch_info.kernel_id, "[unknown]") for k in kernels),
        "start": _int(k.start_timestamp for k in kernels),
        "dur": _int(k.end_timestamp - k.start_timestamp for k in kernels),
        "device": _int(gpus.get(k.dispatch_info.agent_id.handle, -1) for k in kernels),
        "stream": _int((k.stream_id if streams else k.dispatch_info.queue_id).handle for k in kernels),
        "correlation": _int(k.correlation_id.internal for k in kernels),
        "grid": strings.ids(map(json.dumps, grids)), "block": strings.ids(json.dumps([b.x, b.y, b.z]) for b in blocks),
    }, len(kernels))  # fmt: skip
    copies = records.memory_copy
    copied = raw.frame(raw.DEVICE, {
        "kind": np.full(len(copies), raw.MEMCPY), "process": np.full(len(copies), number),
        "name": strings.ids(f"Memcpy {operation(c.kind, c.operation).removeprefix('MEMORY_COPY_')}" for c in copies),
        "start": _int(c.start_timestamp for c in copies),
        "dur": _int(c.end_timestamp - c.start_timestamp for c in copies),
        "device": _int(gpus.get(c.dst_agent_id.handle, gpus.get(c.src_agent_id.handle, -1)) for c in copies),
        "stream": _int(c.stream_id.handle for c in copies), "bytes": _int(c.bytes for c in copies),
        "correlation": _int(c.correlation_id.internal for c in copies),
    }, len(copies))  # fmt: skip

    def host_columns(calls: list[_Call], texts: list[str]) -> dict[str, Any]:
        return {
            "name": strings.ids(texts), "thread": strings.ids(f"{pid}/{c.thread_id}" for c in calls),
            "start": _int(c.start_timestamp for c in calls),
            "dur": _int(c.end_timestamp - c.start_timestamp for c in calls),
        }  # fmt: skip

    calls = records.hip_api
    launches = raw.frame(raw.LAUNCHES, {
        **host_columns(calls, [operation(c.kind, c.operation) for c in calls]),
        "correlation": _int(c.correlation_id.internal for c in calls), "process": np.full(len(calls), number),
    }, len(calls))  # fmt: skip
    messages = {m.key: m.value for m in process.strings.marker_api}
    ranges = [c for c in (*records.marker_api, *records.rccl_api) if c.end_timestamp > c.start_timestamp]
    texts = [messages.get(c.correlation_id.internal) or operation(c.kind, c.operation) for c in ranges]
    host = raw.frame(raw.HOST, host_columns(ranges, texts), len(ranges))
    return pl.concat([device, copied]), launches, host


def _symbol(symbol: _Symbol) -> str:
    for name in (symbol.formatted_kernel_name, symbol.demangled_kernel_name, symbol.kernel_name):
        if isinstance(name, str) and name:
            return name
    return "[unknown]"


def _int(values: Any) -> np.ndarray:
    return np.fromiter(values, dtype=np.int64)
