"""Device activity on AMD GPUs through rocprofiler-sdk and ctypes.

NOT YET RUN ON HARDWARE. Written from the public headers of rocprofiler-sdk 1.0 (ROCm 7: registration.h, context.h,
buffer.h, buffer_tracing.h, callback_tracing.h, fwd.h); only the translation of records is tested. Versions before 1.0
are refused, because the callback record grew a field (the correlation's ancestor) in between.

Unlike CUPTI, rocprofiler-sdk takes a tool's registration only before the ROCm runtime starts, so `enable` comes before
the first HIP call of the process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atrex.profiling.collector import CollectorError, CollectorUnavailable, KernelRecord

OLDEST = 10_000  # 10000 * major + 100 * minor + patch

# Enumerators of fwd.h
CATEGORY_TRACING = 1
POLICY_LOSSLESS = 2
BUFFER_MEMORY_COPY = 10
BUFFER_KERNEL_DISPATCH = 11
CALLBACK_CODE_OBJECT = 10
KERNEL_SYMBOL_REGISTER = 2
PHASE_LOAD = 1

BUFFER_BYTES = 4 << 20

_COPIES = {1: "HtoH", 2: "HtoD", 3: "DtoH", 4: "DtoD"}

# rocprofiler_buffer_tracing_kernel_dispatch_record_t: kind 8, correlation 16, start 40, end 48, then the dispatch
# (size 56, agent 64, queue 72, kernel id 80)
_DISPATCH = struct.Struct("<16xQ16xQQ8xQQQ")
# rocprofiler_buffer_tracing_memory_copy_record_t: operation 12, correlation 16, start 40, end 48, destination agent 56
_COPY = struct.Struct("<12xiQ16xQQQ")
# rocprofiler_callback_tracing_code_object_kernel_symbol_register_data_t: kernel id 8, name 24
_SYMBOL = struct.Struct("<8xQ8xQ")


class _Header(ctypes.Structure):
    """rocprofiler_record_header_t"""

    _fields_ = [("category", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("payload", ctypes.c_void_p)]


class _CallbackRecord(ctypes.Structure):
    """rocprofiler_callback_tracing_record_t"""

    _fields_ = [
        ("context", ctypes.c_uint64),
        ("thread", ctypes.c_uint64),
        ("correlation", ctypes.c_uint64 * 3),
        ("kind", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("phase", ctypes.c_int),
        ("payload", ctypes.c_void_p),
    ]


# Handles are structs of one uint64, which the x86-64 and AArch64 calling conventions pass like a uint64.
_INITIALIZE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_FINALIZE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CONFIGURE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_void_p
)
_ON_BUFFER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.POINTER(_Header)),
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_uint64,
)
_ON_SYMBOL = ctypes.CFUNCTYPE(None, _CallbackRecord, ctypes.c_void_p, ctypes.c_void_p)


class _ConfigureResult(ctypes.Structure):
    """rocprofiler_tool_configure_result_t"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("initialize", _INITIALIZE),
        ("finalize", _FINALIZE),
        ("tool_data", ctypes.c_void_p),
    ]


class RocProfilerError(CollectorError):
    """A rocprofiler-sdk call failed; the message names it and its status."""


def parse_dispatch(address: int, names: dict[int, str]) -> KernelRecord:
    """The kernel dispatch record at `address`; `names` maps kernel ids to symbols. Stream is the queue's handle."""
    correlation, start, end, agent, queue, kernel = _read(_DISPATCH, address)
    return KernelRecord(names.get(kernel, f"kernel {kernel}"), "kernel", start, end, queue, correlation, agent)


def parse_copy(address: int) -> KernelRecord:
    """The memory copy record at `address`. Copies have no queue of their own: stream is 0."""
    operation, correlation, start, end, agent = _read(_COPY, address)
    return KernelRecord(f"Memcpy {_COPIES.get(operation, '?')}", "memcpy", start, end, 0, correlation, agent)


def parse_symbol(address: int) -> tuple[int, str]:
    """Kernel id and name of a kernel symbol registration; the ".kd" of kernel descriptors is cut off."""
    kernel, name = _read(_SYMBOL, address)
    return kernel, ctypes.string_at(name).decode(errors="replace").removesuffix(".kd")


def _read(layout: struct.Struct, address: int) -> tuple[int, ...]:
    return layout.unpack(ctypes.string_at(address, layout.size))


def library_candidates() -> Iterator[str]:
    """Where librocprofiler-sdk may be: ROCM_PATH, beside torch, known to the loader."""
    folders = [Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib"]
    folders += [Path(entry) / "torch/lib" for entry in sys.path if entry]
    for folder in folders:
        yield from (str(path) for path in sorted(folder.glob("librocprofiler-sdk.so*"), reverse=True))
    yield from ("librocprofiler-sdk.so.1", "librocprofiler-sdk.so")


def load_library() -> ctypes.CDLL:
    """Raises `CollectorUnavailable` when no librocprofiler-sdk loads."""
    error = "none found in ROCM_PATH, beside torch or on the loader path"
    for name in library_candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as problem:
            if "/" in name:
                error = str(problem)
    raise CollectorUnavailable(f"librocprofiler-sdk cannot be loaded: {error}")


class RocProfiler:
    """The `Collector` for AMD devices; see the module for what is and is not verified. One instance a process."""

    def __init__(self) -> None:
        self.dropped = 0
        self.untimed = 0
        self._library: ctypes.CDLL | None = None
        self._names: dict[int, str] = {}
        self._records: list[KernelRecord] = []
        self._symbols = ctypes.c_uint64(0)
        self._activity = ctypes.c_uint64(0)
        self._buffer = ctypes.c_uint64(0)
        self._problem: CollectorError | None = None
        self._started = False
        self._on_buffer = _ON_BUFFER(self._take)
        self._on_symbol = _ON_SYMBOL(self._name)
        self._configure = _CONFIGURE(self._accept)
        # No finalizer: it would run when the interpreter is gone.
        self._result = _ConfigureResult(
            ctypes.sizeof(_ConfigureResult), _INITIALIZE(self._initialize), _FINALIZE(), None
        )
        _KEPT.append(self)  # the library calls back until the process ends

    def enable(self) -> None:
        """Register with rocprofiler-sdk. Raises `CollectorUnavailable` (missing, too old) or `RocProfilerError`."""
        if self._library is not None:
            return
        library = load_library()
        self._library = library
        self._call("rocprofiler_force_configure", self._configure)
        if self._problem is None and not self._activity.value:
            self._problem = RocProfilerError("rocprofiler-sdk did not initialize: the ROCm runtime had already started")
        if self._problem is not None:
            self._library = None
            raise self._problem

    def start(self) -> None:
        """Begin to collect. Raises `CollectorError`."""
        self._records.clear()
        self.dropped = self.untimed = 0
        self._call("rocprofiler_start_context", self._activity)
        self._started = True

    def stop(self) -> list[KernelRecord]:
        """End collecting; the records in order of their start. Synchronize the device before."""
        if not self._started:
            raise CollectorError("stop() without start()")
        self._started = False
        self._call("rocprofiler_stop_context", self._activity)
        self._call("rocprofiler_flush_buffer", self._buffer)
        timed = [record for record in self._records if record.start_ns and record.end_ns]
        self.untimed = len(self._records) - len(timed)
        return sorted(timed, key=lambda record: record.start_ns)

    def _accept(self, version: int, runtime: bytes, priority: int, client: int) -> int | None:
        if version < OLDEST:
            self._problem = CollectorUnavailable(
                f"rocprofiler-sdk {version // 10_000}.{version % 10_000 // 100} is too old: "
                "expected 1.0 (ROCm 7) or newer"
            )
            return None
        return ctypes.addressof(self._result)

    def _initialize(self, finalize: int, data: int) -> int:
        try:
            self._set_up()
        except CollectorError as problem:
            self._problem = problem
            return -1
        return 0

    def _set_up(self) -> None:
        """Two contexts: kernel names are followed from the beginning, activity only between start and stop."""
        self._call("rocprofiler_create_context", ctypes.byref(self._symbols))
        self._call(
            "rocprofiler_configure_callback_tracing_service",
            self._symbols, ctypes.c_int(CALLBACK_CODE_OBJECT), None, ctypes.c_size_t(0), self._on_symbol, None,
        )
        self._call("rocprofiler_create_context", ctypes.byref(self._activity))
        self._call(
            "rocprofiler_create_buffer",
            self._activity, ctypes.c_size_t(BUFFER_BYTES), ctypes.c_size_t(BUFFER_BYTES // 2),
            ctypes.c_int(POLICY_LOSSLESS), self._on_buffer, None, ctypes.byref(self._buffer),
        )
        for kind in (BUFFER_KERNEL_DISPATCH, BUFFER_MEMORY_COPY):
            self._call(
                "rocprofiler_configure_buffer_tracing_service",
                self._activity, ctypes.c_int(kind), None, ctypes.c_size_t(0), self._buffer,
            )
        self._call("rocprofiler_start_context", self._symbols)

    def _name(self, record: _CallbackRecord, user_data: int, data: int) -> None:
        if (record.kind, record.operation, record.phase) == (CALLBACK_CODE_OBJECT, KERNEL_SYMBOL_REGISTER, PHASE_LOAD):
            kernel, name = parse_symbol(record.payload)
            self._names[kernel] = name

    def _take(self, context: int, buffer: int, headers: Any, count: int, data: int, dropped: int) -> None:
        self.dropped += dropped
        for i in range(count):
            header = headers[i].contents
            if header.category != CATEGORY_TRACING:
                continue
            if header.kind == BUFFER_KERNEL_DISPATCH:
                self._records.append(parse_dispatch(header.payload, self._names))
            elif header.kind == BUFFER_MEMORY_COPY:
                self._records.append(parse_copy(header.payload))

    def _call(self, name: str, *arguments: Any) -> None:
        if self._library is None:
            raise CollectorError("the collector is used before enable()")
        function: Callable[..., int] = getattr(self._library, name)
        status = function(*arguments)
        if status != 0:
            raise RocProfilerError(f"{name} failed: status {status} (rocprofiler_status_t)")


_KEPT: list[RocProfiler] = []
