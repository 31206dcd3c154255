"""CUPTI activity records of this process, through ctypes on libcupti.

torch.profiler is not used: its first start takes seconds in a fresh process, while CUPTI itself starts in hundredths of
a second. The calls are those of NVIDIA's CUPTI reference ("CUPTI Activity API"); the record layouts are in
`atrex.profiling.cupti_records`.

CUPTI keeps one pair of buffer callbacks a process, so another user of it in the same process (a torch.profiler session
of the candidate) takes the records away: `stop` then returns fewer or none. No record means "not measured".
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atrex.profiling.collector import CollectorError, CollectorUnavailable, KernelRecord
from atrex.profiling.cupti_records import COLLECTED_KINDS, parse

SUCCESS = 0
MAX_LIMIT_REACHED = 12
NOT_INITIALIZED = 15
INVALID_KIND = 21
FLUSH_FORCED = 1

# One kernel record takes at most 248 bytes (CUDA 13.5): a buffer holds about 17,000 launches. Pages that are never
# written cost nothing, and a buffer that cannot fill is never completed from CUPTI's own thread, where the callback
# would have to wait for the interpreter lock.
BUFFER_BYTES = 4 << 20

_REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class CuptiError(CollectorError):
    """A CUPTI call failed: `call`, its numeric `code`, and CUPTI's own name for it in the message."""

    def __init__(self, call: str, code: int, name: str):
        super().__init__(f"{call} failed: {name} ({code})")
        self.call = call
        self.code = code


class _Buffer:
    """Page-aligned anonymous memory (CUPTI asks for 8-byte alignment)."""

    def __init__(self, size: int):
        self._memory = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.size = size


def library_candidates() -> Iterator[str]:
    """Where libcupti may be, best first: already loaded, beside torch, in CUDA_HOME, known to the loader, with triton.

    The loaded one comes first because two copies in a process would compete for the driver's single profiler slot.
    """
    try:
        with open("/proc/self/maps") as maps:
            # A torch build links its own libcupti; triton's copy is loaded only by its profiler.
            yield from sorted({line.split(maxsplit=5)[5].strip() for line in maps if "/libcupti" in line})
    except OSError:
        pass
    bases = [Path(entry) for entry in sys.path if entry]
    for base in bases:
        for folder in (*sorted(base.glob("nvidia/cu[0-9]*/lib"), reverse=True), base / "nvidia/cuda_cupti/lib",
                       base / "torch/lib"):
            yield from _newest(folder)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            yield from _newest(Path(home) / "extras/CUPTI/lib64")
            yield from _newest(Path(home) / "lib64")
    yield from ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
    for base in bases:
        yield from _newest(base / "triton/backends/nvidia/lib/cupti")


def _newest(folder: Path) -> Iterator[str]:
    yield from (str(path) for path in sorted(folder.glob("libcupti*.so*"), reverse=True))


def load_library() -> ctypes.CDLL:
    """Load the first libcupti that loads. Raises `CollectorUnavailable` with the last loader error."""
    error = "none found beside torch, in CUDA_HOME or on the loader path"
    for name in library_candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError as problem:
            if "/" in name:
                error = str(problem)
            continue
        if hasattr(library, "cuptiActivityRegisterCallbacks"):
            return _declare(library)
    raise CollectorUnavailable(f"libcupti cannot be loaded: {error}")


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer = ctypes.POINTER
    signatures = {
        "cuptiGetVersion": [pointer(ctypes.c_uint32)],
        "cuptiGetResultString": [ctypes.c_int, pointer(ctypes.c_char_p)],
        "cuptiGetTimestamp": [pointer(ctypes.c_uint64)],
        "cuptiActivityRegisterCallbacks": [_REQUESTED, _COMPLETED],
        "cuptiActivityEnable": [ctypes.c_int],
        "cuptiActivityDisable": [ctypes.c_int],
        "cuptiActivityFlushAll": [ctypes.c_uint32],
        "cuptiActivityGetNextRecord": [ctypes.c_void_p, ctypes.c_size_t, pointer(ctypes.c_void_p)],
        "cuptiActivityGetNumDroppedRecords": [ctypes.c_void_p, ctypes.c_uint32, pointer(ctypes.c_size_t)],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return library


class Cupti:
    """The `Collector` for NVIDIA devices: kernels (those of CUDA graphs included), copies and fills, in all contexts.

    One instance a process. `enable` needs no CUDA context, only a driver.
    """

    def __init__(self, buffer_bytes: int = BUFFER_BYTES):
        self.dropped = 0
        self.untimed = 0
        self.version: int | None = None
        self._buffer_bytes = buffer_bytes
        self._library: ctypes.CDLL | None = None
        self._started = False
        self._lock = threading.RLock()  # callbacks come on whichever thread launches
        self._free: list[_Buffer] = []
        self._lent: dict[int, _Buffer] = {}
        self._completed: list[tuple[_Buffer, int]] = []
        # ctypes frees a callback with its last reference, while CUPTI keeps the address until the process ends.
        self._callbacks = (_REQUESTED(self._on_requested), _COMPLETED(self._on_completed))
        _KEPT.append(self._callbacks)

    def enable(self) -> None:
        """Load libcupti, register the buffer callbacks, and switch the kinds on and off once, which pays the set-up.

        Raises `CollectorUnavailable` without libcupti, `CuptiError` where the driver refuses (none installed, or
        another profiler is attached).
        """
        if self._library is not None:
            return
        library = load_library()
        version = ctypes.c_uint32()
        self._check(library, "cuptiGetVersion", ctypes.byref(version))
        self.version = version.value
        self._free = [_Buffer(self._buffer_bytes) for _ in range(2)]
        self._check(library, "cuptiActivityRegisterCallbacks", *self._callbacks)
        self._switch(library, "cuptiActivityEnable")
        self._switch(library, "cuptiActivityDisable")
        self._library = library
        # Left to CUPTI's own exit handler, a last buffer would be delivered to an interpreter that is gone.
        atexit.register(self._drain)

    def start(self) -> None:
        """Begin to collect; what was collected before is forgotten. Raises `CuptiError`."""
        library = self._require()
        self._recycle()
        self.dropped = self.untimed = 0
        self._check_dropped(library)
        self._switch(library, "cuptiActivityEnable")
        self._started = True

    def stop(self) -> list[KernelRecord]:
        """End collecting; the records in order of their start. Synchronize the device before. Raises `CuptiError`."""
        library = self._require()
        if not self._started:
            raise CollectorError("stop() without start()")
        self._started = False
        self._switch(library, "cuptiActivityDisable")
        self._check(library, "cuptiActivityFlushAll", FLUSH_FORCED)
        self.dropped = self._check_dropped(library)
        records = []
        with self._lock:
            completed = list(self._completed)
        for buffer, valid in completed:
            for address in self._walk(library, buffer.address, valid):
                record = parse(address)
                if record is None:
                    continue
                if record.start_ns == 0 or record.end_ns == 0:
                    self.untimed += 1
                else:
                    records.append(record)
        self._recycle()
        return sorted(records, key=lambda record: record.start_ns)

    def timestamp_ns(self) -> int:
        """Now, on the clock of the records. Raises `CuptiError`."""
        now = ctypes.c_uint64()
        self._check(self._require(), "cuptiGetTimestamp", ctypes.byref(now))
        return now.value

    def _require(self) -> ctypes.CDLL:
        if self._library is None:
            raise CollectorError("the collector is used before enable()")
        return self._library

    def _on_requested(self, buffer: Any, size: Any, max_records: Any) -> None:
        buffer[0] = None
        with self._lock:
            block = self._free.pop() if self._free else _Buffer(self._buffer_bytes)
            self._lent[block.address] = block
        buffer[0] = block.address
        size[0] = block.size
        max_records[0] = 0

    def _on_completed(self, context: Any, stream: int, address: int, size: int, valid: int) -> None:
        with self._lock:
            self._completed.append((self._lent.pop(address), valid))

    def _recycle(self) -> None:
        with self._lock:
            self._free += [buffer for buffer, _ in self._completed]
            self._completed.clear()

    def _walk(self, library: ctypes.CDLL, address: int, valid: int) -> Iterator[int]:
        record = ctypes.c_void_p()
        while True:
            code = library.cuptiActivityGetNextRecord(address, valid, ctypes.byref(record))
            if code == SUCCESS and record.value:
                yield record.value
            elif code == MAX_LIMIT_REACHED:
                return
            elif code == INVALID_KIND:  # a record the device had not finished; what follows it cannot be read
                self.untimed += 1
                return
            else:
                raise _error(library, "cuptiActivityGetNextRecord", code)

    def _switch(self, library: ctypes.CDLL, call: str) -> None:
        for kind in COLLECTED_KINDS:
            self._check(library, call, kind)

    def _check(self, library: ctypes.CDLL, call: str, *arguments: Any) -> None:
        code = getattr(library, call)(*arguments)
        if code != SUCCESS:
            raise _error(library, call, code)

    def _check_dropped(self, library: ctypes.CDLL) -> int:
        """Records dropped since the last call (CUPTI's count restarts when it is read)."""
        dropped = ctypes.c_size_t()
        self._check(library, "cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(dropped))
        return dropped.value

    def _drain(self) -> None:
        if self._library is not None:
            for kind in COLLECTED_KINDS:
                self._library.cuptiActivityDisable(kind)
            self._library.cuptiActivityFlushAll(FLUSH_FORCED)


_KEPT: list[object] = []


def _error(library: ctypes.CDLL, call: str, code: int) -> CuptiError:
    text = ctypes.c_char_p()
    known = library.cuptiGetResultString(code, ctypes.byref(text)) == SUCCESS and text.value
    name = text.value.decode(errors="replace") if known and text.value else "unknown error"
    if code in (NOT_INITIALIZED, 999):
        name += ", is an NVIDIA driver installed?"
    return CuptiError(call, code, name)
