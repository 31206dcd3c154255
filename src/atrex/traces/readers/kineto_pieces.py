"""A Kineto file as a stream of pieces that hold whole events, its header before them.

Header keys stand before `traceEvents`, after it or on both sides; a file may also be the bare array. A piece of a plain
file is a byte range, so that whoever decodes it reads it; of a compressed one it is the bytes.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from atrex.errors import UserError
from atrex.traces.readers.kineto_repair import BOUNDARY

PIECE = 2 << 20
MAX_HEADER = 256 << 20
MAX_EVENT = 64 << 20
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\s*\[")
GZIP = b"\x1f\x8b"

Piece = bytes | tuple[str, int, int]


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP


class Gunzip:
    """Blocks of a gzip file (several members too), decompressed in a thread of its own. A damaged file ends early."""

    def __init__(self, path: Path, block: int = PIECE) -> None:
        self.path, self.size = path, path.stat().st_size
        self.read_bytes = 0
        self.damage: str | None = None
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=3)
        self._stop = threading.Event()
        self._block = block
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.path.open("rb") as file:
                self._inflate(file)
        except BaseException as error:  # handed to the reading thread
            self._put(error)
        self._put(None)

    def _inflate(self, file: IO[bytes]) -> None:
        inflater, inside, rest = zlib.decompressobj(31), False, b""
        held: list[bytes] = []
        while not self._stop.is_set():
            data = rest or file.read(1 << 18)
            if not data:
                break
            try:
                held.append(inflater.decompress(data, self._block))
            except zlib.error as error:
                self.damage = f"the gzip stream is damaged near byte {file.tell()} of {self.size} ({error})"
                break
            inside, rest = True, inflater.unconsumed_tail
            if inflater.eof:  # another member may follow, or padding
                rest = inflater.unused_data.lstrip(b"\0")
                rest = rest if rest.startswith(GZIP[: len(rest)]) else b""
                inflater, inside = zlib.decompressobj(31), False
            self.read_bytes = file.tell() - len(rest)
            if sum(map(len, held)) >= self._block:
                self._put(b"".join(held))
                held = []
        if held:
            self._put(b"".join(held))
        if inside and self.damage is None:
            self.damage = f"the gzip stream ends in the middle, after byte {self.size}"

    def _put(self, item: bytes | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[bytes]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        self._stop.set()


class PieceStream:
    """Iterates over the pieces of a file. `header` is there from the start, `position` counts bytes read."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        self._gunzip = Gunzip(path) if is_gzip(path) else None
        self._blocks = iter(self._gunzip) if self._gunzip else None
        self.header, self._buffer, self._offset = self._find_events()

    @property
    def position(self) -> int:
        return self._gunzip.read_bytes if self._gunzip else self._offset

    @property
    def damage(self) -> str | None:
        return self._gunzip.damage if self._gunzip else None

    def close(self) -> None:
        if self._gunzip:
            self._gunzip.close()

    def _find_events(self) -> tuple[bytes, bytes, int]:
        """(bytes before the event array, bytes of it already read, offset of its first byte in a plain file)."""
        buffer = b""
        blocks = self._blocks if self._blocks is not None else _plain_blocks(self.path)
        for block in blocks:
            searched = max(0, len(buffer) - 64)
            buffer += block
            found = _EVENTS_KEY.search(buffer, searched)
            if found is None and _BARE_ARRAY.match(buffer):
                found = _BARE_ARRAY.match(buffer)
            if found is not None:
                header = buffer[: found.start()] if buffer.lstrip()[:1] != b"[" else b""
                return header, buffer[found.end() :] if self._blocks is not None else b"", found.end()
            if len(buffer) > MAX_HEADER:
                break
        self.close()
        raise UserError(f"{self.path}: no traceEvents array in it: not a Kineto or Chrome trace")

    def __iter__(self) -> Iterator[Piece]:
        if self._blocks is None:
            yield from self._ranges()
            return
        buffer = self._buffer
        for block in self._blocks:
            buffer += block
            cut = _last_boundary(buffer)
            if cut is not None:
                yield buffer[: cut[0]]
                buffer = buffer[cut[1] :]
            elif len(buffer) > MAX_EVENT:
                raise UserError(f"{self.path}: {len(buffer)} bytes without the end of an event: not a trace")
        if buffer:
            yield buffer

    def _ranges(self) -> Iterator[Piece]:
        """Byte ranges of a plain file. Only a window before each cut is read here."""
        name = os.fspath(self.path)
        with self.path.open("rb") as file:
            start = self._offset
            while start < self.size:
                stop, window = start + PIECE, 1 << 16
                if stop >= self.size:
                    self._offset = self.size
                    yield name, start, self.size
                    return
                while True:
                    low = max(start, stop - window)
                    file.seek(low)
                    cut = _last_boundary(file.read(stop - low))
                    if cut is not None:
                        break
                    if stop - start > MAX_EVENT:
                        raise UserError(f"{self.path}: {stop - start} bytes without the end of an event: not a trace")
                    if low == start:  # one event is longer than a piece
                        stop = min(stop + PIECE, self.size)
                        if stop == self.size:
                            self._offset = stop
                            yield name, start, stop
                            return
                    window *= 4
                piece = (name, start, low + cut[0])
                start = self._offset = low + cut[1]
                yield piece


def _plain_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(PIECE):
            yield block


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """(end of the last whole event, start of what follows it) in a buffer, if there is a boundary between events."""
    window = 1 << 14
    while True:
        low = max(0, len(buffer) - window)
        last = None
        for found in BOUNDARY.finditer(buffer, low):
            last = found
        if last is not None:
            return last.start() + 1, last.end()
        if low == 0:
            return None
        window *= 8
