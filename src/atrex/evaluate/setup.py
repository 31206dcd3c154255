"""What is fixed for a whole run: device, chip, protocol, what the protocol costs, seeds, budgets, zygote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from atrex.errors import UserError
from atrex.evaluate import null_candidate, stats
from atrex.evaluate.bindings import Bindings
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.lease import Alone, Lease
from atrex.evaluate.noise import Sentinel
from atrex.evaluate.performance import Baseline, measure_floor
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.spawn import Worker, WorkerDied, WorkerTimeout, Zygote
from atrex.evaluate.timing import protocol_for
from atrex.evaluate.timing.protocol import Protocol
from atrex.hardware.chip import Chip
from atrex.problems.dtypes import Fp8Encoding

MUCH_KEPT = 1 << 30
"""Bytes that a judge's allocator may keep from one unit to the next."""


@dataclass
class Setup:
    """Made by `prepare`; `close` ends the zygote, which removes the scratch folder."""

    device: torch.device
    chip: Chip
    protocol: Protocol
    protocol_spec: dict[str, Any]
    baseline: Baseline
    seeds: Seeds
    seed_count: int
    budgets: Budgets
    zygote: Zygote
    timed_calls: int | None = None
    calibrated: Chip | None = None
    collector_fault: str | None = None
    sentinel: Sentinel | None = None
    lease: Lease | Alone = field(default_factory=Alone)
    confinement: dict[str, Any] | None = None
    reuses: bool = False
    """Whether units of one candidate that follow each other may share a worker; who sets it calls `let_go`."""
    _next: Worker | None = None
    _kept: tuple[tuple[str, str], Worker, Bindings] | None = None

    @property
    def fp8(self) -> Fp8Encoding:
        """The chip's fp8 encoding; a chip without fp8 keeps its operands in NVIDIA's."""
        return self.chip.fp8 or "e4m3fn"

    def spawn(self) -> Worker:
        """A fresh worker with a scratch folder of its own, its device started. Raises WorkerDied or WorkerTimeout.

        On a device the next one is forked at once: until it is needed it has loaded what it needs and started the
        driver, which takes longer than its context and nothing from those who time meanwhile.
        """
        ready, self._next = self._next, None
        worker = self._start(ready) if ready else None
        if worker is None:
            worker = self._fork()
            worker.start()
        if self.device.type == "cuda":
            self._next = self._fork()
        return worker

    def keep(self, key: tuple[str, str], worker: Worker, bindings: Bindings) -> None:
        """Keep a worker that has forgotten its unit, and its blocks, for another unit of the candidate `key`."""
        self.let_go()
        self._kept = key, worker, bindings

    def kept(self, key: tuple[str, str]) -> tuple[Worker, Bindings] | None:
        """What is kept for the candidate `key`; what is kept for another is let go."""
        if self._kept is None or self._kept[0] != key:
            self.let_go()
            return None
        (_, *found), self._kept = self._kept, None
        return tuple(found)

    def let_go(self) -> None:
        """End the worker that is kept: no candidate is to be there when none of its units is judged."""
        if self._kept is not None:
            _, worker, bindings = self._kept
            self._kept = None
            worker.close()
            bindings.close()

    @staticmethod
    def _start(worker: Worker) -> Worker | None:
        """None for one that was forked ahead and did not come up; a fresh one may."""
        try:
            worker.start()
        except (WorkerDied, WorkerTimeout):
            worker.close()
            return None
        return worker

    def _fork(self) -> Worker:
        # Threads of the host that wait for work beside a device only make its times from outside uneven.
        threads = self.zygote.threads if self.device.type == "cpu" else 1
        return self.zygote.spawn({"device": str(self.device), "threads": threads} | self.protocol_spec)

    def release(self) -> None:
        """Give the room on the device back that the allocator keeps, if it is much: other judges need it.

        Takes the lease: memory that is unmapped while another judge times may show in its times.
        """
        if not self.lease.crowded or self.device.type != "cuda":
            return
        if torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device) > MUCH_KEPT:
            with self.lease.shared():
                torch.cuda.empty_cache()

    def refresh(self) -> None:
        """Measure anew what the way to a worker costs: other load on the machine may have come or gone."""
        now = _baseline(self)
        self.baseline = replace(now, null_us=self.baseline.null_us, floor_us=self.baseline.floor_us)

    def close(self) -> None:
        self.let_go()
        if self._next is not None:
            self._next.close()
        self.zygote.close()


def resolve_device(name: str) -> torch.device:
    """ "cpu" or "cuda:N" as a device that is there. Raises UserError."""
    from atrex.hardware.detect import check_device

    check_device(name)
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    return device


def prepare(
    device_name: str,
    seeds: Seeds,
    seed_count: int,
    budgets: Budgets,
    timed_calls: int | None = None,
    zygote: Zygote | None = None,
    hidden: Iterable[str | Path] = (),
    lease: Lease | None = None,
) -> Setup:
    """Start the zygote (or take the one that is given), find the chip, measure the floor.

    No worker can read what is `hidden`, nor the shipped suite. What confines workers is then in `Setup.confinement`.
    Raises UserError for a device that is not there.
    """
    device = resolve_device(device_name)
    zygote = zygote or Zygote()
    zygote.hide(*hidden)
    try:
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        lease = lease or Alone()
        with lease.shared():  # a context that is made while another judge measures its floor makes that higher
            chip, calibrated, spec = _chip(device)
            protocol = protocol_for(device, spec)
            protocol.synchronize()
        setup = Setup(
            device, chip, protocol, spec, Baseline(0.0, 0.0), seeds, seed_count, budgets, zygote,
            timed_calls=timed_calls, calibrated=calibrated, lease=lease,
        )  # fmt: skip
        if "flush_library" in spec:  # it lies in the user's own cache, which workers do not see
            spec["flush_library"] = zygote.homes.share(spec["flush_library"])
        zygote.wait_ready()
        with setup.lease.exclusive():
            protocol.warm_up()
            setup.baseline = _baseline(setup)
            if device.type == "cuda":
                setup.sentinel = Sentinel(device)
    except BaseException:
        zygote.close()
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
    sweep = 0 if native.atrex_flush_supported() else 2 * (chip.cache_bytes or 64 << 20)
    return chip, None, {"flush_library": str(native.build()), "sweep_bytes": sweep}


def _baseline(setup: Setup, calls: int = 60) -> Baseline:
    """The floor, and what the way to a worker adds to the judge's clock: a null candidate through a real worker."""
    try:
        worker = setup.spawn()
    except (WorkerDied, WorkerTimeout) as error:
        raise UserError(f"device {setup.device}: no worker could be started: it {error or 'did not answer'}") from None
    bindings = Bindings(worker, setup.device)
    try:
        tiny = {"x": torch.ones(1, device=setup.device)}
        setup.confinement = worker.held
        source, cache = worker.place("null", "null.py", Path(null_candidate.__file__).read_text())
        order = {"op": "load", "source": str(source), "init_kwargs": {}, "dsl": "cpp", "cache": str(cache)}
        loaded = worker.ask(order, 60)
        if "raised" in loaded:
            raise UserError(f"a worker cannot run the null candidate: {loaded['raised']}: {loaded['message']}")
        bindings.bind(tiny, {"out": torch.ones(1, device=setup.device)}, 10)
        bindings.write(tiny)
        worker.ask({"op": "pilot", "warm": 3, "count": 5}, 10)
        inside, extra = [], []
        for _ in range(calls):
            worker.ask({"op": "arm", "place": 0}, 10)
            order = {"op": "timed", "adopt": False, "delay_us": Baseline.DELAY_US}
            answer, outside = worker.ask_timed(order, 10, spin=setup.device.type != "cpu")
            inside.append(answer["us"])
            extra.append(outside - answer["us"])
    finally:
        worker.close()
        bindings.close()
    found = Baseline(
        0.0, stats.median(inside), stats.median(extra), stats.percentile(extra, 90), stats.percentile(extra, 10)
    )
    if setup.device.type == "cuda":
        found.null_us, found.floor_us = measure_floor(setup.protocol, lambda: torch.cuda._sleep(0))
    return found
