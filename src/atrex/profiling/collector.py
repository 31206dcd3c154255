"""The interface of device activity collectors: which kernels and copies ran, when, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["kernel", "memcpy", "memset"]


class CollectorError(RuntimeError):
    """The collector failed. What it would have measured is not known; it is never zero."""


class CollectorUnavailable(CollectorError):
    """The library behind the collector is missing or too old; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One device activity.

    `name` is the symbol as the driver gives it (mangled for C++), "Memcpy DtoD" and the like for copies, "Memset" for
    fills. `start_ns` and `end_ns` are nanoseconds on one clock for all records of a collector. `stream` numbers are the
    profiler's own; `device` is the CUDA ordinal, or the agent handle on AMD. `correlation` ties the record to the call
    that caused it; all kernels of one graph launch share it.
    """

    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    stream: int
    correlation: int
    device: int = 0

    @property
    def us(self) -> float:
        """Duration in microseconds."""
        return (self.end_ns - self.start_ns) / 1e3


class Collector(Protocol):
    """Collects device activity between `start` and `stop`, in the process that launches it.

    `enable` is called once, as early as possible (before the candidate is imported), and pays the set-up. Outside
    `start`..`stop` nothing is collected, so that timed calls pay nothing. After `stop`, `dropped` counts the records
    that found no buffer and `untimed` those that came without time stamps: where either is not zero, shares computed
    from the records are lower bounds of unknown quality and must not be presented as measured.
    """

    dropped: int
    untimed: int

    def enable(self) -> None:
        """Load the library and register with it. Raises `CollectorUnavailable` or `CollectorError`."""

    def start(self) -> None:
        """Begin to collect. Raises `CollectorError`."""

    def stop(self) -> list[KernelRecord]:
        """End collecting and return the records in order of their start.

        The caller synchronizes the device first: work still running has no end time and counts as `untimed`.
        Raises `CollectorError`.
        """


def device_collector(device: str) -> Collector:
    """The collector for a torch device string ("cuda", "cuda:1"): CUPTI, or rocprofiler-sdk on a HIP build.

    Raises ValueError for the CPU, where no device activity exists.
    """
    if device.split(":")[0] != "cuda":
        raise ValueError(f"no device activity to collect on {device!r}: expected cuda or cuda:N")
    import torch

    if torch.version.hip:
        from atrex.profiling.rocprofiler import RocProfiler

        return RocProfiler()
    from atrex.profiling.cupti import Cupti

    return Cupti()


def span_us(records: Iterable[KernelRecord]) -> float | None:
    """Microseconds from the first start to the last end; None without records."""
    records = list(records)
    if not records:
        return None
    return (max(r.end_ns for r in records) - min(r.start_ns for r in records)) / 1e3


def busy_us(records: Iterable[KernelRecord]) -> float:
    """Microseconds in which at least one record ran; records that overlap on several streams count once."""
    busy = 0
    until = 0
    for record in sorted(records, key=lambda r: r.start_ns):
        busy += max(0, record.end_ns - max(record.start_ns, until))
        until = max(until, record.end_ns)
    return busy / 1e3
