"""Layout of the CUPTI activity records that are read, and their translation to `KernelRecord`.

NVIDIA extends a record at its end with every version (CUpti_ActivityKernel9, 10, 13; Memcpy5, 6, 7; Memset4, 5) and
keeps what came before, so only the common prefix is read. The offsets below were compared, by a C program that prints
`offsetof`, with the headers of CUPTI 12.6.80, 12.8.90, 13.0.85 and 13.5.25 (x86-64): all four agree.

    record                         start  end  deviceId  streamId  correlationId  other
    CUpti_ActivityKernel9..13        16    24     40        48          92        name 104 (const char *)
    CUpti_ActivityMemcpy5..7         16    24     32        40          44        copyKind 4 (uint8)
    CUpti_ActivityMemset4..5         16    24     32        40          44
    CUpti_ActivityMemcpyPtoP4        16    24     32        40          60        copyKind 4 (uint8)

`kind` (uint32) is at 0 in all of them. Times are nanoseconds.
"""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum

from atrex.profiling.collector import KernelRecord


class ActivityKind(IntEnum):
    """CUpti_ActivityKind, the kinds that are collected.

    CONCURRENT_KERNEL instead of KERNEL: the latter serializes the kernels of the process. With it, and with
    GRAPH_TRACE left off, every kernel node of a CUDA graph has a record of its own.
    """

    MEMCPY = 1
    MEMSET = 2
    CONCURRENT_KERNEL = 10
    MEMCPY2 = 22  # between devices


COLLECTED_KINDS = tuple(ActivityKind)

# CUpti_ActivityMemcpyKind
_COPIES = dict(enumerate(["HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"], start=1))

_KERNEL = struct.Struct("<16xQQ8xI4xI40xI8xQ")  # start, end, device, stream, correlation, name
_MEMCPY = struct.Struct("<4xB11xQQI4xII")  # copy kind, start, end, device, stream, correlation
_MEMSET = struct.Struct("<16xQQI4xII")  # start, end, device, stream, correlation
_MEMCPY2 = struct.Struct("<4xB11xQQI4xI16xI")  # copy kind, start, end, device, stream, correlation


def parse(address: int) -> KernelRecord | None:
    """The record at `address` (8-byte aligned, alive); None for kinds that are not collected."""
    kind = ctypes.c_uint32.from_address(address).value
    if kind == ActivityKind.CONCURRENT_KERNEL:
        start, end, device, stream, correlation, name = _read(_KERNEL, address)
        text = ctypes.string_at(name).decode(errors="replace") if name else "?"
        return KernelRecord(text, "kernel", start, end, stream, correlation, device)
    if kind in (ActivityKind.MEMCPY, ActivityKind.MEMCPY2):
        layout = _MEMCPY if kind == ActivityKind.MEMCPY else _MEMCPY2
        copy, start, end, device, stream, correlation = _read(layout, address)
        return KernelRecord(f"Memcpy {_COPIES.get(copy, '?')}", "memcpy", start, end, stream, correlation, device)
    if kind == ActivityKind.MEMSET:
        start, end, device, stream, correlation = _read(_MEMSET, address)
        return KernelRecord("Memset", "memset", start, end, stream, correlation, device)
    return None


def _read(layout: struct.Struct, address: int) -> tuple[int, ...]:
    return layout.unpack(ctypes.string_at(address, layout.size))
