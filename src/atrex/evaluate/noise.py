"""Noise on the device: a sentinel of fixed work beside every batch, and what the driver says about throttling.

The sentinel is the judge's own work, a chain of copies through device memory. It is longer than a time slice, so a
second process on the device stretches it, and it is bound by memory, so a kernel that shares the memory with it does.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from atrex.evaluate import stats

SLOWED = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
"""Clock event reasons (NVML) under which a time is not taken. A software power cap is what hot kernels run at."""


class Sentinel:
    """Times the same work again and again: `baseline_us` is its time on a quiet device, `sample()` its time now."""

    DRIFT = 1.10
    """A sample of more than this times the baseline is noise: on a quiet H200 samples lie within 2 % of each other."""
    TARGET_US = 4000.0  # two time slices of the driver's default
    BYTES = 256 << 20
    BASELINE_SAMPLES = 9

    def __init__(self, device: torch.device):
        self._device = device
        self._source = torch.zeros(self.BYTES // 4, dtype=torch.int32, device=device)
        self._target = torch.empty_like(self._source)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._copies = 4
        self.sample()
        self._copies = max(1, round(self._copies * self.TARGET_US / min(self.sample() for _ in range(3))))
        self.baseline_us = min(self.sample() for _ in range(self.BASELINE_SAMPLES))

    @property
    def bandwidth(self) -> float:
        """Bytes per second, read and written, at the baseline."""
        return 2 * self.BYTES * self._copies / (self.baseline_us * 1e-6)

    def sample(self) -> float:
        """Microseconds of the sentinel's work on an otherwise idle device."""
        self._start.record()
        for _ in range(self._copies):
            self._target.copy_(self._source)
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e3

    def wait_calm(self, seconds: float) -> bool:
        """Wait until three samples in a row are near the baseline; whether that came in time."""
        deadline, calm = time.monotonic() + seconds, 0
        while calm < 3:
            calm = calm + 1 if self.sample() <= self.DRIFT * self.baseline_us else 0
            if not calm:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.2)
        return True


@dataclass
class Watch:
    """The samples of one unit's timed calls."""

    sentinel: Sentinel | None
    samples: list[float] = field(default_factory=list)

    def look(self) -> None:
        if self.sentinel is not None:
            self.samples.append(self.sentinel.sample())

    @property
    def drift(self) -> float | None:
        """The slowest sample over the baseline."""
        return max(self.samples) / self.sentinel.baseline_us if self.samples else None

    def record(self) -> dict[str, Any] | None:
        if not self.samples:
            return None
        return {
            "us": stats.median(self.samples),
            "slowest_us": max(self.samples),
            "baseline_us": self.sentinel.baseline_us,
            "drift": self.drift,
            "samples": len(self.samples),
        }

    def noise(self, *clocks: dict[str, Any] | None) -> str | None:
        """What disturbed the batch, in one line: a drifting sentinel, or a throttled device in one of the snapshots."""
        slowed = {reason for c in clocks if c for reason in c.get("reasons") or ()} & SLOWED
        if slowed:
            return f"the device is throttled: {', '.join(sorted(slowed))}"
        if self.drift is not None and self.drift > Sentinel.DRIFT:
            return (
                f"something else ran on the device: the sentinel took up to {max(self.samples):.0f} us, "
                f"{self.sentinel.baseline_us:.0f} us when it is quiet"
            )
        return None


def busy_cores() -> str | None:
    """A line for the terminal when more processes want the cores of this machine than it has; None when they do not."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cpus:
        return None
    return (
        f"note: other work has the cores (load {load:.1f} on {cpus}): judging takes longer, and units may end unstable"
    )
