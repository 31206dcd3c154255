"""A Kineto file decoded piece by piece, large ones by threads of the native scanner or, without
one, by several processes. Imports neither polars nor torch.

`start_early` begins with a large file before the caller has imported what it needs to go on: a third of a small
command's time is imports, and the decoding processes need few of them.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.traces.readers.kineto_decode import Batch, PieceDecoder
from atrex.traces.readers.kineto_pieces import Piece, PieceStream
from atrex.traces.readers.kineto_worker import load_piece

# Below this size a second process costs more than it saves.
PARALLEL_FROM = 24 << 20
UNDECODED = 3  # pieces that a worker has waiting
DECODED = 256  # results that wait for the caller: a megabyte or less each
_Item = tuple[Piece, Future[tuple[int, Batch]]] | BaseException
_early: dict[Path, Decoding] = {}


def start_early(path: Path, jobs: int) -> None:
    """Begin to decode a file that `decoding` will ask for, if it is a large one in JSON; otherwise nothing happens."""
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
        if path.stat().st_size >= PARALLEL_FROM and start[:1] in (b"{", b"[", b"\x1f") and jobs > 1:
            _early[path] = Decoding(path, jobs)
    except (OSError, UserError):
        return


def decoding(path: Path, jobs: int) -> Decoding:
    """The decoding of a file: the one begun early, or a new one. Raises UserError if the file holds no event array."""
    return _early.pop(path, None) or Decoding(path, jobs)


class Decoding:
    """Iterates over (table of strings, piece, batch) in the file's order. Leaving its context ends the processes.

    Large files are decoded by threads with the native scanner, or without it by processes in Python.
    """

    def __init__(self, path: Path, jobs: int) -> None:
        self.stream = PieceStream(path)
        self._workers: _Threads | _Processes | None = None
        if self.stream.size >= PARALLEL_FROM:
            from atrex.traces.readers import kineto_native

            scanner = kineto_native.library()
            if scanner is not None:
                self._workers = _Threads(scanner, jobs)
            elif jobs > 1:
                self._workers = _Processes(jobs)
        if self._workers is not None:
            self._results: queue.Queue[_Item | None] = queue.Queue(DECODED)
            self._slots = threading.Semaphore(UNDECODED * jobs)
            self._stop = threading.Event()
            self._feeder = threading.Thread(target=self._feed, daemon=True)
            self._feeder.start()

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        if self._workers is not None:
            self._stop.set()
            self._slots.release()
            self._workers.close()

    def _feed(self) -> None:
        assert self._workers is not None
        try:
            for number, piece in enumerate(self.stream):
                self._slots.acquire()
                worker = number % self._workers.count
                future = self._workers.decode(worker, piece)
                future.add_done_callback(lambda _: self._slots.release())
                if not self._put((piece, future)):
                    return
            self._put(None)
        except BaseException as error:  # handed to the thread that reads
            self._put(error)

    def _put(self, item: _Item | None) -> bool:
        while not self._stop.is_set():
            try:
                self._results.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[tuple[int, Piece, Batch]]:
        if self._workers is None:
            decoder = PieceDecoder()
            for piece in self.stream:
                yield 0, piece, decoder.decode(load_piece(piece))
            return
        while (item := self._results.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            piece, future = item
            table, batch = future.result()
            yield table, piece, batch


class _Threads:
    """Threads that decode pieces with the native scanner, which runs beside Python; a scanner each."""

    def __init__(self, scanner: Any, count: int) -> None:
        from atrex.traces.readers.kineto_native import NativeDecoder

        self.count = count
        self._decoders = [NativeDecoder(scanner) for _ in range(count)]
        self._threads = [ThreadPoolExecutor(1) for _ in range(count)]

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)
        for decoder in self._decoders:
            decoder.close()

    def decode(self, worker: int, piece: Piece) -> Future[tuple[int, Batch]]:
        return self._threads[worker].submit(lambda: self._decode(worker, piece))

    def _decode(self, worker: int, piece: Piece) -> tuple[int, Batch]:
        table, batch = self._decoders[worker].decode(load_piece(piece))
        return 2 * worker + table, batch


class _Processes:
    """Processes that decode pieces, each with its own table of strings, and a thread each that feeds it in order."""

    def __init__(self, count: int) -> None:
        self.count = count
        env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "atrex.traces.readers.kineto_worker"]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) for _ in range(count)
        ]
        self.threads = [ThreadPoolExecutor(1) for _ in range(count)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        for thread in self.threads:
            thread.shutdown(wait=True, cancel_futures=True)

    def decode(self, worker: int, piece: Piece) -> Future[tuple[int, Batch]]:
        return self.threads[worker].submit(self._decode, worker, piece)

    def _decode(self, worker: int, piece: Piece) -> tuple[int, Batch]:
        process = self.processes[worker]
        try:
            pickle.dump(piece, process.stdin, protocol=5)
            process.stdin.flush()
            return worker, pickle.load(process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise RuntimeError(f"a process that decodes the trace ended (status {process.poll()})") from error
