"""What a piece of work on a device costs: seconds, and the most memory that tensors took meanwhile."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from types import TracebackType

import torch


@dataclass(frozen=True)
class Cost:
    """Of one shape: `seconds` and `peak_bytes` of all its checks; of these, `reference_seconds` and `reference_bytes`
    for drawing the inputs and running the reference on them once. Bytes are None on the CPU: not measured.
    """

    seconds: float
    peak_bytes: int | None
    reference_seconds: float | None
    reference_bytes: int | None


class Meter:
    """Measure a block: `seconds` of wall clock, the device idle at both ends, and `peak_bytes` of its tensors."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.seconds = 0.0
        self.peak_bytes: int | None = None

    def __enter__(self) -> Meter:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda" and error is None and usable(self.device):
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device)
        self.seconds = time.perf_counter() - self._start


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says that memory ran out."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (torch.OutOfMemoryError, MemoryError)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def usable(device: str | torch.device) -> bool:
    """Whether the device still answers: after an illegal access, nothing of this process does."""
    if torch.device(device).type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            return False
    return True


def release(device: str) -> None:
    """Give back what no tensor holds any more, so that one shape does not starve the next."""
    gc.collect()
    if torch.device(device).type == "cuda" and usable(device):
        torch.cuda.empty_cache()


def start(device: str) -> None:
    """Start the device's context and its matrix library, which is no cost of the first shape."""
    if torch.device(device).type == "cuda":
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            x = torch.ones(64, 64, dtype=dtype, device=device)
            torch.softmax(x @ x, -1)
        torch.cuda.synchronize(device)
