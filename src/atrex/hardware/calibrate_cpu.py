"""Measure this CPU's ceilings: cold-cache bandwidth, arithmetic peaks, the cost of a parallel region.

Everything is the best of many short runs in several rounds, so that a busy neighbour costs precision and not truth; the
rounds' disagreement is the record's uncertainty.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from atrex.errors import UserError
from atrex.hardware import native
from atrex.hardware.cache import cache_sizes, cpu_model, usable_cpus
from atrex.hardware.record import durations, header, measurement

# (parts read, parts written): read only, copy, two operands into one result, fill.
MIXES = ((1, 0), (1, 1), (2, 1), (0, 1))
_PATTERN = {(1, 0): 0, (1, 1): 1, (2, 1): 2, (0, 1): 3}
SIZES = tuple(4096 << (2 * i) for i in range(8))  # 4 KiB to 64 MiB, total bytes
STEADY_FROM = 16 << 20  # no cache and no start-up shows in cold transfers of this size
KINDS = ("vector.fp32", "vector.fp64", "vector.fp16", "dot.bf16", "dot.int8", "tile.bf16", "tile.int8")
LINE = 64
WAYS = ((1, 16), (4, 0), (4, 16))  # interleaved streams a thread, software prefetch distance in lines
ROUNDS = 4
MATMUL_ROUNDS = 2
AGREED = 0.1  # rounds go on, up to the deadline, while a tenth of the points still moves by more than this
DEADLINE_S = 13.0


class _Buffer:
    """Anonymous memory, huge pages advised, first touched by all threads."""

    def __init__(self, size: int, threads: int) -> None:
        align = 2 << 20
        self._map = mmap.mmap(-1, size + align)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = ctypes.c_char.from_buffer(self._map)
        self.pointer = (ctypes.addressof(self._view) + align - 1) // align * align
        native.lib().atrex_touch(self.pointer, size, threads)


def calibrate_cpu(progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Measure this CPU and return the calibration record (10 to 15 s).

    Raises UserError when there is no C++ compiler or OpenMP grants fewer threads than CPUs.
    """
    say = progress or (lambda text: None)
    begin = time.monotonic()
    threads = usable_cpus()
    record = header("cpu", "cpu", cpu_model())
    sizes = cache_sizes()
    record["environment"] = {"model": cpu_model(), "cpus": os.cpu_count(), "threads": threads, **sizes}
    record["versions"]["compiler"] = native.find_compiler()
    native.lib()
    region = durations(_region(threads))  # before torch is loaded, whose own OpenMP threads keep spinning for a while
    memory = _Memory(threads, sizes.get("llc", 32 << 20))
    say("memory")
    memory.scan()
    peaks: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    matmul: dict[str, list[list[float]]] = {}
    turn = 0
    while turn < 2 or time.monotonic() - begin < DEADLINE_S:
        if turn >= ROUNDS and _uncertainty([point["spread"] for point in memory.points()]) <= AGREED:
            break
        turn += 1
        say(f"round {turn}")
        memory.round()
        for kind in KINDS:
            peaks[kind].append(_peak(kind, threads))
        if turn <= MATMUL_ROUNDS:
            for dtype, rates in _matmul().items():
                matmul.setdefault(dtype, []).append(rates)
    measured = {kind: measurement(rounds, "FLOP/s") for kind, rounds in peaks.items() if any(rounds)}
    measured.update({f"matmul.{dtype}": measurement(rounds, "FLOP/s") for dtype, rounds in matmul.items()})
    measured["floor.parallel_region"] = region
    record["measurements"] = measured
    record["memory"] = memory.points()
    record["steady_from"] = STEADY_FROM
    spreads = [entry["spread"] for name, entry in measured.items() if not name.startswith(("floor", "matmul"))]
    spreads += [point["spread"] for point in record["memory"]]
    record["uncertainty"] = _uncertainty(spreads)
    record["rounds"] = turn
    record["seconds"] = round(time.monotonic() - begin, 2)
    return record


_Key = tuple[tuple[int, int], bool, int]  # mix, non-temporal stores, total bytes
_Variant = tuple[int, int, int]  # interleaved streams, prefetch distance in lines, threads


def _uncertainty(spreads: list[float]) -> float:
    return statistics.quantiles(spreads, n=10)[8]


class _Memory:
    def __init__(self, threads: int, last_level: int) -> None:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.sizes = [size for size in SIZES if size <= max(SIZES[4], available // 8)]
        self.threads = threads
        largest = self.sizes[-1]
        self.a, self.b, self.out = (_Buffer(size, threads) for size in (largest, largest // 2, largest))
        flushes = native.atrex_flush_supported()
        self.scratch_bytes = 0 if flushes else 2 * last_level
        self.scratch = None if flushes else _Buffer(self.scratch_bytes, threads)
        self.rounds: dict[_Key, list[list[float]]] = {}
        self.variants: dict[_Key, list[_Variant]] = {}

    def scan(self) -> None:
        """Try every way to move the bytes; keep the fastest with one thread and the fastest with all for the rounds."""
        for mix in MIXES:
            for streaming in (False, True) if mix[1] else (False,):
                for size in self.sizes:
                    key = (mix, streaming, size)
                    self.rounds[key], self.variants[key] = [[]], []
                    for threads in sorted({1, self.threads}):
                        tried = {(*way, threads): [] for way in WAYS}
                        for variant in tried:
                            tried[variant] = self._run(key, variant, budget=0.003)
                            self.rounds[key][0] += tried[variant]
                        self.variants[key].append(max(tried, key=lambda variant, seen=tried: max(seen[variant])))

    def round(self) -> None:
        for key, variants in self.variants.items():
            self.rounds[key].append([rate for variant in variants for rate in self._run(key, variant, budget=0.006)])

    def _run(self, key: _Key, variant: _Variant, budget: float) -> list[float]:
        mix, streaming, size = key
        streams, ahead, threads = variant
        lines = size // sum(mix) // LINE
        reps = 200
        seconds = (ctypes.c_double * reps)()
        done = native.lib().atrex_transfer(
            self.a.pointer if mix[0] else None,
            self.b.pointer if mix[0] == 2 else None,
            self.out.pointer if mix[1] else None,
            lines, _PATTERN[mix], streaming, streams, ahead, threads, reps, budget,
            self.scratch.pointer if self.scratch else None, self.scratch_bytes, seconds,
        )  # fmt: skip
        _check_threads(done)
        return [lines * LINE * sum(mix) / value for value in seconds[:done]]

    def points(self) -> list[dict[str, Any]]:
        points = []
        for (mix, streaming, size), rounds in self.rounds.items():
            variants = self.variants[mix, streaming, size]
            points.append(
                measurement(
                    rounds,
                    "B/s",
                    read=mix[0],
                    written=mix[1],
                    bytes=size // sum(mix) // LINE * LINE * sum(mix),
                    stores="non-temporal" if streaming else "regular",
                    variants=[dict(zip(("streams", "prefetch_lines", "threads"), v, strict=True)) for v in variants],
                )
            )
        return points


def _check_threads(done: int) -> None:
    if not done:
        raise UserError("OpenMP gave fewer threads than this process has CPUs: unset OMP_THREAD_LIMIT to calibrate")


def _peak(kind: str, threads: int, reps: int = 150) -> list[float]:
    """[FLOP/s]: the sum of each thread's best run while all of them ran; [] when this CPU has no such instruction."""
    rates = (ctypes.c_double * (threads * reps))()
    used = native.lib().atrex_peak(kind.encode(), threads, 3e-4, reps, 0.05, rates)
    if kind == "vector.fp32":
        _check_threads(used)
    return [sum(max(rates[t * reps : (t + 1) * reps]) for t in range(threads))] if used else []


def _region(threads: int, reps: int = 500) -> list[float]:
    seconds = (ctypes.c_double * reps)()
    native.lib().atrex_region(threads, reps, seconds)
    return list(seconds)


def _matmul(side: int = 768, budget: float = 0.06) -> dict[str, list[float]]:
    """FLOP/s of torch.matmul per dtype: a check on the register-only peaks, which should not be lower."""
    import torch

    result = {}
    for dtype in ("fp32", "fp64", "bf16", "fp16"):
        kind = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        a, b = (torch.randn(side, side).to(kind) for _ in range(2))
        torch.matmul(a, b)
        rates: list[float] = []
        end = time.perf_counter() + budget
        while not rates or (time.perf_counter() < end and len(rates) < 50):
            start = time.perf_counter()
            torch.matmul(a, b)
            rates.append(2 * side**3 / (time.perf_counter() - start))
        result[dtype] = rates
    return result
