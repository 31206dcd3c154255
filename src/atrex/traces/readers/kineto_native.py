"""The native scanner of Kineto events, built on first use where there is a C++ compiler: a tenth of the time in Python.

It takes pieces that are plainly as Kineto writes them; every other piece is decoded by `kineto_decode`, and without a
compiler all are. Both give the same columns.
"""

from __future__ import annotations

import ctypes
import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from atrex.errors import UserError
from atrex.traces.readers.kineto_decode import DEVICE_KINDS, Batch, PieceDecoder, one_spacing

SOURCES = ("kineto_scan.cpp",)
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=c++17")
OFF = "ATREX_NO_NATIVE"  # set to anything, pieces are decoded in Python
# In the order of Kind and of atrex_kineto_column in kineto_scan.cpp.
KINDS = ("kernel", "memcpy", "memset", "launch", "op", "frame", "annotation", "device_annotation")
COLUMNS = (
    ("kind", np.int8), ("name", np.int32), ("thread", np.int32), ("start", np.int64), ("dur", np.int64),
    ("correlation", np.int64), ("device", np.int64), ("stream", np.int64), ("bytes", np.int64), ("graph", np.int64),
    ("node", np.int64), ("kernel", np.int32), ("grid", np.int32), ("block", np.int32), ("dims", np.int32),
    ("dtypes", np.int32), ("concrete", np.int32), ("others", np.int32),
)  # fmt: skip
_OF_KIND = {
    **{kind: ("correlation", "device", "stream", "bytes", "graph", "node", "grid", "block") for kind in DEVICE_KINDS},
    "launch": ("thread", "correlation", "kernel", "grid", "block"),
    "op": ("thread", "dims", "dtypes", "concrete"),
    "frame": ("thread",),
    "annotation": ("thread",),
    "device_annotation": ("device", "stream"),
}
_EVERY = 5  # columns that every event has; Python frames have no others


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The scanner, or None where it is switched off or cannot be built."""
    if os.environ.get(OFF):
        return None
    from atrex.hardware import native

    try:
        handle = ctypes.CDLL(str(native.build(here=Path(__file__).parent / "native", sources=SOURCES, flags=FLAGS)))
    except (UserError, OSError):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    handle.atrex_kineto_new.restype = pointer
    handle.atrex_kineto_free.argtypes = [pointer]
    handle.atrex_kineto_scan.argtypes = [pointer, pointer, size]
    handle.atrex_kineto_scan.restype = ctypes.c_long
    handle.atrex_kineto_column.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(size)]
    handle.atrex_kineto_column.restype = pointer
    handle.atrex_kineto_strings.argtypes = [pointer]
    handle.atrex_kineto_strings.restype = size
    handle.atrex_kineto_string.argtypes = [pointer, size, ctypes.POINTER(size), ctypes.POINTER(ctypes.c_int)]
    handle.atrex_kineto_string.restype = pointer
    return handle


class NativeDecoder:
    """Decodes pieces as `PieceDecoder` does. `tables`: it keeps two tables of strings, the scanner's and Python's."""

    def __init__(self, scanner: ctypes.CDLL) -> None:
        self._library = scanner
        self._handle = scanner.atrex_kineto_new()
        self._python = PieceDecoder()
        self._strings: list[str] = []

    def close(self) -> None:
        if self._handle:
            self._library.atrex_kineto_free(self._handle)
            self._handle = None

    def decode(self, array: bytearray) -> tuple[int, Batch]:
        """(which table of strings the ids are of, the columns) of a piece in brackets."""
        text = (ctypes.c_char * len(array)).from_buffer(array)
        found = self._library.atrex_kineto_scan(self._handle, ctypes.addressof(text) + 1, len(array) - 2)
        del text
        if found < 0:
            return 1, self._python.decode(array)
        fresh = self._fresh()
        return 0, self._batch(fresh)

    def _column(self, which: int) -> np.ndarray:
        n = ctypes.c_size_t()
        at = self._library.atrex_kineto_column(self._handle, which, ctypes.byref(n))
        dtype = np.dtype(COLUMNS[which][1])
        if not n.value:
            return np.empty(0, dtype=dtype)
        return np.frombuffer((ctypes.c_char * (n.value * dtype.itemsize)).from_address(at), dtype=dtype)

    def _fresh(self) -> list[str]:
        """The strings that the scanner has added since the last call."""
        fresh = []
        for number in range(len(self._strings), self._library.atrex_kineto_strings(self._handle)):
            n, raw = ctypes.c_size_t(), ctypes.c_int()
            at = self._library.atrex_kineto_string(self._handle, number, ctypes.byref(n), ctypes.byref(raw))
            content = ctypes.string_at(at, n.value)
            if raw.value:
                fresh.append(one_spacing(content))
            else:
                fresh.append(json.loads(b'"' + content + b'"') if b"\\" in content else content.decode())
        self._strings += fresh
        return fresh

    def _batch(self, fresh: list[str]) -> Batch:
        columns = {name: self._column(i) for i, (name, _) in enumerate(COLUMNS)}
        kind = columns.pop("kind")
        others, times = np.unique(columns.pop("others"), return_counts=True)
        batch = Batch(columns={}, strings=fresh)
        for packed, n in zip(others.tolist(), times.tolist(), strict=True):
            phase, category = chr(packed >> 24), self._strings[packed & 0xFFFFFF]
            batch.counts[f"{phase}:{category}" if category else phase] = n
        every = {name for name, _ in COLUMNS[1:_EVERY]}
        rest = kind[kind != KINDS.index("frame")]
        for code, name in enumerate(KINDS):
            rows = kind == code
            n = int(rows.sum())
            if not n:
                continue
            batch.counts[name] = n
            some = rest == code
            batch.columns[name] = {
                c: columns[c][rows if c in every else some] for c in ("name", "start", "dur", *_OF_KIND[name])
            }
        return batch
