"""Calibration: measure a device's ceilings into a record, and turn a CPU's record into a chip.

`python -m atrex.hardware.calibrate OUT` measures the CPU in a process of its own, which is how `load_or_calibrate_cpu`
does it: the caller stays free of OpenMP threads and of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.hardware.cache import cache_sizes, calibration_cache_dir, cpu_model, usable_cpus
from atrex.hardware.chip import Chip
from atrex.hardware.curve import BandwidthCurve, ColdMemory
from atrex.hardware.record import SCHEMA, read_record, write_record

MAX_AGE_S = 7 * 24 * 3600.0
MIN_UNCERTAINTY = 0.02


def calibrate(device: str, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Measure `device` ("cpu", "cuda", "cuda:N") and return the record.

    Raises UserError for a device that is unknown or not here, and on the CPU when there is no C++ compiler.
    """
    from atrex.hardware.detect import check_device, parse_device

    kind, index = parse_device(device)
    check_device(device)
    if kind == "cpu":
        from atrex.hardware.calibrate_cpu import calibrate_cpu

        return calibrate_cpu(progress)
    from atrex.hardware.calibrate_cuda import calibrate_cuda

    return calibrate_cuda(index, progress)


def cpu_chip(record: dict[str, Any]) -> Chip:
    """The chip that a CPU calibration record describes.

    Peaks are in FLOP/s and the best of the register-only loop and torch.matmul; the memory curve is the upper envelope
    of every transfer measured; `uncertainty` is the record's, at least 2 %.
    """
    measured = {name: entry["best"] for name, entry in record["measurements"].items() if entry["unit"] == "FLOP/s"}
    vector = {dtype: measured[f"vector.{dtype}"] for dtype in ("fp32", "fp64", "fp16") if f"vector.{dtype}" in measured}
    matrix = {}
    for dtype in ("fp32", "fp64", "fp16", "bf16", "int8"):
        names = [f"{way}.{dtype}" for way in ("vector", "dot", "tile", "matmul")]
        if any(name in measured for name in names):
            matrix[dtype] = max(measured[name] for name in names if name in measured)
    memory = cold_memory(record["memory"], steady_from=record["steady_from"])
    environment = record["environment"]
    source = {"source": "measured here", "where": record["command"], "date": record["date"][:10]}
    return Chip(
        id="cpu",
        name=record["name"],
        vendor="cpu",
        arch=os.uname().machine if hasattr(os, "uname") else "cpu",
        fp8="e4m3fn",
        peaks={"matrix": matrix, "vector": vector},
        memory_bandwidth=memory.bandwidth_at(max(p["bytes"] for p in record["memory"])),
        l2_bytes=environment.get("l2"),
        llc_bytes=environment.get("llc"),
        units=environment["threads"],
        memory=memory,
        uncertainty=max(MIN_UNCERTAINTY, record["uncertainty"]),
        note="CPU ceilings are measured (best of many short runs) and carry an uncertainty.",
        sources={
            "memory_bandwidth": source,
            **{f"peaks.matrix.{dtype}": source for dtype in matrix},
            **{f"peaks.vector.{dtype}": source for dtype in vector},
        },
    )


def cold_memory(points: list[dict[str, Any]], steady_from: float) -> ColdMemory:
    """The curves through a record's points.

    From `steady_from` bytes on, a mix has one bandwidth, the best seen there: long transfers seldom run undisturbed,
    and a ceiling must not be lower than what shorter ones have shown to be sustained.
    """
    steady_from *= 0.99  # sizes are rounded down to whole lines
    curves = {}
    for mix in sorted({(point["read"], point["written"]) for point in points}):
        mine = [(point["bytes"], point["best"]) for point in points if (point["read"], point["written"]) == mix]
        steady = max((best for size, best in mine if size >= steady_from), default=0.0)
        curves[mix] = BandwidthCurve.envelope([(size, steady if size >= steady_from else best) for size, best in mine])
    return ColdMemory(curves).raised_to(
        (point["bytes"] * point["read"] / (point["read"] + point["written"]),
         point["bytes"] * point["written"] / (point["read"] + point["written"]),
         point["bytes"] / point["best"])
        for point in points
    )  # fmt: skip


def cpu_record_path(cache_dir: Path | None = None) -> Path:
    """Where this CPU's record is cached: one file per CPU model, CPU count, thread count and record schema."""
    key = json.dumps([SCHEMA, cpu_model(), os.cpu_count(), usable_cpus(), cache_sizes()])
    return (cache_dir or calibration_cache_dir()) / f"cpu-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def gpu_record_path(chip_id: str, cache_dir: Path | None = None) -> Path:
    """Where the record of a calibrated GPU is cached: one file per chip id."""
    return (cache_dir or calibration_cache_dir()) / f"gpu-{chip_id}.json"


def cached_cpu_chip(cache_dir: Path | None = None) -> Chip | None:
    """This CPU's chip from its cached record, however old, or None when it was never calibrated."""
    record = _cached(cpu_record_path(cache_dir))
    return None if record is None else cpu_chip(record)


def load_or_calibrate_cpu(
    cache_dir: Path | None = None, max_age: float = MAX_AGE_S, progress: Callable[[str], None] | None = None
) -> Chip:
    """This CPU's chip, measured now (about 15 s) if there is no record younger than `max_age` seconds.

    A new measurement keeps every figure of the last week's record that is better: with `max_age=0`, a time that beats
    the ceiling is answered by a ceiling that is at least as high. Raises UserError when there is no C++ compiler or the
    cache is not writable.
    """
    path = cpu_record_path(cache_dir)
    old = _cached(path)
    if old is not None and time.time() - path.stat().st_mtime <= max_age:
        return cpu_chip(old)
    if progress:
        progress("calibrating this CPU, about 15 s, once")
    return cpu_chip(recalibrate_cpu(cache_dir))


def recalibrate_cpu(cache_dir: Path | None = None) -> dict[str, Any]:
    """Measure this CPU now, in a process of its own, into the cache, and return the record. Raises UserError."""
    path = cpu_record_path(cache_dir)
    old = _cached(path)
    recent = old is not None and time.time() - path.stat().st_mtime <= MAX_AGE_S
    record = _measure_in_a_process(path)
    if recent:
        record = better_of(old, record)
        write_record(record, path)
    return record


def calibrated_chip(chip: Chip, cache_dir: Path | None = None) -> Chip | None:
    """`chip` with the ceilings that `atrex hardware calibrate` measured on one here, or None if none was.

    What was not measured keeps its cited figure. Bandwidth is the better of reading and copying.
    """
    record = _cached(gpu_record_path(chip.id, cache_dir))
    return None if record is None else gpu_chip(chip, record)


def gpu_chip(chip: Chip, record: dict[str, Any]) -> Chip:
    """`chip` with the measured figures of a GPU's calibration record in place of the cited ones."""
    peaks = {engine: dict(by_dtype) for engine, by_dtype in chip.peaks.items()}
    sources = dict(chip.sources)
    source = {"source": f"measured on a {record['name']}", "where": record["command"], "date": record["date"][:10]}
    for name, entry in record["measurements"].items():
        engine, _, dtype = name.partition(".")
        if engine in peaks:
            peaks[engine][dtype] = entry["best"]
            sources[f"peaks.{name}"] = source
    bandwidth = max(record["measurements"][f"memory.{way}"]["best"] for way in ("read", "copy"))
    sources["memory_bandwidth"] = source
    return replace(
        chip, peaks=peaks, memory_bandwidth=bandwidth, uncertainty=record["uncertainty"], sources=sources
    )


def better_of(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` with every figure of `old` that is better; the larger uncertainty of the two."""
    merged = {**new, "uncertainty": max(old["uncertainty"], new["uncertainty"]), "merged": old["date"]}
    merged["measurements"] = {
        name: max(entry, old["measurements"].get(name, entry), key=lambda one: one["best"])
        if entry["unit"] == "FLOP/s"
        else entry
        for name, entry in new["measurements"].items()
    }
    merged["memory"] = [*old["memory"], *new["memory"]]
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for point in merged["memory"]:
        key = (point["read"], point["written"], point["bytes"], point["stores"])
        if key not in best or point["best"] > best[key]["best"]:
            best[key] = point
    merged["memory"] = list(best.values())
    return merged


def _cached(path: Path) -> dict[str, Any] | None:
    try:
        return read_record(path)
    except UserError:
        return None  # absent, of another schema or damaged: measured anew and replaced


def _measure_in_a_process(path: Path) -> dict[str, Any]:
    package_root = str(Path(__file__).parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "atrex.hardware.calibrate", str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode == 2:
        raise UserError(result.stderr.strip().removeprefix("error: "))
    if result.returncode:
        last = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
        raise UserError(f"CPU calibration failed: {last}")
    return read_record(path)


def _main(out: str) -> int:
    try:
        write_record(calibrate("cpu"), Path(out))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
