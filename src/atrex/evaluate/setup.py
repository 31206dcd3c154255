"""What is fixed for a whole run: device, chip, protocol, what the protocol costs, seeds, budgets, zygote."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from atrex.errors import UserError
from atrex.evaluate import null_candidate, stats
from atrex.evaluate.bindings import Bindings
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.performance import Baseline, measure_floor
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.spawn import Worker, Zygote
from atrex.evaluate.timing import protocol_for
from atrex.evaluate.timing.protocol import Protocol
from atrex.hardware.chip import Chip

_MEMORY_SHARE = 0.6


@dataclass
class Setup:
    """Made by `prepare`; `close` ends the zygote and removes the scratch folder."""

    device: torch.device
    chip: Chip
    protocol: Protocol
    protocol_spec: dict[str, Any]
    baseline: Baseline
    seeds: Seeds
    seed_count: int
    budgets: Budgets
    zygote: Zygote
    scratch: Path
    threads: int
    timed_calls: int | None = None
    calibrated: Chip | None = None
    memory_limit: int = field(default_factory=lambda: int(psutil.virtual_memory().total * _MEMORY_SHARE))

    def spawn(self, name: str) -> Worker:
        """A fresh worker with a scratch folder of its own."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))
        spec = {"device": str(self.device), "scratch": str(folder), "threads": self.threads} | self.protocol_spec
        return self.zygote.spawn(spec, self.memory_limit)

    def close(self) -> None:
        self.zygote.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def resolve_device(name: str) -> torch.device:
    """ "cpu" or "cuda:N" as a device that is there. Raises UserError."""
    from atrex.hardware.detect import check_device

    check_device(name)
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    return device


def prepare(device_name: str, seeds: Seeds, seed_count: int, budgets: Budgets, timed_calls: int | None) -> Setup:
    """Start the zygote, find the chip, measure the floor. Raises UserError for a device that is not there."""
    device = resolve_device(device_name)
    scratch = Path(tempfile.mkdtemp(prefix="atrex-"))
    threads = len(os.sched_getaffinity(0))
    zygote = Zygote(scratch, threads)
    try:
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        chip, calibrated, spec = _chip(device)
        protocol = protocol_for(device, spec)
        setup = Setup(
            device, chip, protocol, spec, Baseline(0.0, 0.0), seeds, seed_count, budgets, zygote, scratch, threads,
            timed_calls, calibrated,
        )  # fmt: skip
        zygote.wait_ready()
        protocol.warm_up()
        if device.type == "cuda":
            null, floor = measure_floor(protocol, lambda: torch.cuda._sleep(0))
            setup.baseline = Baseline(null, floor)
        else:
            setup.baseline = _host_baseline(setup)
    except BaseException:
        zygote.close()
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return setup


def _chip(device: torch.device) -> tuple[Chip, Chip | None, dict[str, Any]]:
    from atrex.hardware import native
    from atrex.hardware.calibrate import calibrated_chip, load_or_calibrate_cpu
    from atrex.hardware.chip import load_chip
    from atrex.hardware.detect import detect

    if device.type == "cuda":
        chip = load_chip(detect(str(device)))
        return chip, calibrated_chip(chip), {}
    chip = load_or_calibrate_cpu()
    return chip, None, {"flush_library": str(native.library_path())}


def _host_baseline(setup: Setup, calls: int = 60) -> Baseline:
    """A null candidate through a real worker: its own time, and what the way to it adds to the judge's clock."""
    import time

    worker = setup.spawn("null")
    bindings = Bindings(worker, setup.device)
    try:
        tiny = {"x": torch.ones(1)}
        order = {
            "op": "load", "source": null_candidate.__file__, "init_kwargs": {}, "dsl": "cpp",
            "cache": str(setup.scratch / "null-cache"),
        }  # fmt: skip
        (setup.scratch / "null-cache").mkdir(exist_ok=True)
        loaded = worker.ask(order, 60)
        if "raised" in loaded:
            raise UserError(f"a worker cannot run the null candidate: {loaded['raised']}: {loaded['message']}")
        bindings.bind(tiny, {"out": torch.ones(1)}, 10)
        bindings.write(tiny)
        inside, extra = [], []
        for _ in range(calls):
            worker.ask({"op": "arm"}, 10)
            started = time.perf_counter_ns()
            answer = worker.ask({"op": "timed", "adopt": False, "delay_us": 0.0}, 10)
            outside = (time.perf_counter_ns() - started) / 1e3
            inside.append(answer["us"])
            extra.append(outside - answer["us"])
        floor = stats.median(inside)
        return Baseline(0.0, floor, stats.median(extra), stats.percentile(extra, 90))
    finally:
        worker.close()
        bindings.close()
