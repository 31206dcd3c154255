"""Measure a GPU's ceilings through torch: matrix throughput per dtype, read, copy and write bandwidth, launch floor.

Device time by events around batches that outlast the launch overhead. What comes out is what a vendor library reaches,
so it stands beside the cited dense peaks and does not replace them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from atrex.errors import UserError
from atrex.hardware.record import durations, header, measurement

ROUNDS = 5
BATCH_S = 0.02
SIDE = {"bf16": 8192, "fp16": 8192, "fp8_e4m3": 8192, "tf32": 8192, "fp32": 4096, "fp64": 4096, "int8": 8192}
BUFFER_BYTES = 2 << 30
FLOOR_REPS = 200
HIDE_CYCLES = 200_000  # a delay on the device longer than a launch takes on the host


def calibrate_cuda(index: int, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Measure cuda:`index` (NVIDIA, or AMD under ROCm) and return the calibration record; about 10 s.

    A dtype that this chip or this torch cannot multiply is left out and named under "skipped" with the reason. Raises
    UserError when the device has no memory left for the buffers.
    """
    from atrex.hardware.detect import describe

    say = progress or (lambda text: None)
    begin = time.monotonic()
    info = describe(f"cuda:{index}")
    record = header(info.device, info.chip or "unlisted", info.name)
    record["environment"] = {**info.as_dict(), "cuda": torch.version.cuda, "hip": torch.version.hip}
    measured: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    with torch.cuda.device(index), torch.no_grad():
        for dtype in SIDE:
            say(f"matmul {dtype}")
            try:
                name = "vector.fp32" if dtype == "fp32" else f"matrix.{dtype}"
                measured[name] = _matmul(dtype, info.arch)
            except (RuntimeError, AttributeError, NotImplementedError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise UserError(f"device {info.device}: not enough free memory to calibrate") from None
                skipped[dtype] = str(error).splitlines()[0][:200]
            torch.cuda.empty_cache()
        say("memory")
        measured.update(_memory(index))
        torch.cuda.empty_cache()
        say("launch floor")
        measured.update(_floors(skipped))
    record["measurements"] = measured
    record["skipped"] = skipped
    record["uncertainty"] = max(entry["spread"] for entry in measured.values() if entry["unit"] != "us")
    record["seconds"] = round(time.monotonic() - begin, 2)
    return record


def _timed(call: Callable[[], Any]) -> list[float]:
    """Device seconds of one call, averaged over a batch, for each round."""
    for _ in range(3):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    batch = max(1, min(1000, int(BATCH_S / max(start.elapsed_time(end) / 1e3, 1e-6))))
    seconds = []
    for _ in range(ROUNDS):
        start.record()
        for _ in range(batch):
            call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / batch)
    return seconds


def _matmul(dtype: str, arch: str) -> dict[str, Any]:
    n = SIDE[dtype]
    flops = 2 * n**3
    allow = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        seconds = _timed(_product(dtype, n, arch))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allow
    return measurement([[flops / value] for value in seconds], "FLOP/s", side=n)


def _product(dtype: str, n: int, arch: str) -> Callable[[], Any]:
    if dtype == "fp8_e4m3":
        kind = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
        a, b = (torch.randn(n, n, device="cuda").to(kind) for _ in range(2))
        one = torch.ones((), device="cuda")
        # The second operand has to be column-major.
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    if dtype == "int8":
        a, b = (torch.randint(-8, 8, (n, n), device="cuda", dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(a, b.t())
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    a, b = (torch.randn(n, n, device="cuda").to(kinds.get(dtype, torch.float32)) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _memory(index: int) -> dict[str, dict[str, Any]]:
    free, _ = torch.cuda.mem_get_info(index)
    size = min(BUFFER_BYTES, free // 4) // 4096 * 4096
    if size < 64 << 20:
        raise UserError(f"device cuda:{index}: {free >> 20} MiB of free memory are too little to measure bandwidth")
    source = torch.zeros(size // 4, device="cuda")
    target = torch.empty_like(source)
    calls: dict[str, list[tuple[int, Callable[[], Any]]]] = {
        "memory.read": [(size, source.sum), (size, source.amax)],
        "memory.copy": [(2 * size, lambda: target.copy_(source))],
        "memory.write": [(size, target.zero_), (size, lambda: target.fill_(1.0))],
    }
    result = {}
    for name, ways in calls.items():
        tried = [[moved / value for value in _timed(call)] for moved, call in ways]
        best = max(tried, key=max)
        result[name] = measurement([[rate] for rate in best], "B/s", bytes=ways[0][0])
    return result


def _floors(skipped: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The event pair with nothing between, and with an empty kernel, queued behind a device-side delay."""
    floors = {"floor.null": durations(_events(lambda: None))}
    try:
        from atrex.hardware.empty_kernel import empty_kernel
    except ImportError as error:
        skipped["floor.launch"] = f"no triton: {error}"
        return floors
    floors["floor.launch"] = durations(_events(lambda: empty_kernel[(1,)]()))
    return floors


def _events(call: Callable[[], Any]) -> list[float]:
    call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(FLOOR_REPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HIDE_CYCLES)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return seconds
