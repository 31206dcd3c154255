"""CUDA: device events behind a cache flush and a device-side delay, so that launch latency is hidden."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from atrex.evaluate.timing.protocol import Call, Protocol

_MIN_DELAY_US = 20.0
MAX_DELAY_US = 5000.0
_LIMIT_PERSISTING_L2 = 0x06  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE


class CudaProtocol(Protocol):
    """`evict` overwrites twice the L2: it leaves the cache full of dirty lines that are nobody's operands.

    Dirty lines matter: with a clean cache the writes of an output smaller than the L2 would never reach memory
    within the call, and an honest kernel could beat Q / B.
    """

    method = "events"

    def __init__(self, device: torch.device):
        self.device = device
        torch.cuda.set_device(device)
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self._scratch = torch.empty(2 * l2 // 4 + 4, dtype=torch.int32, device=device)
        self._fill = 0
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._cycles_per_us = 2000.0
        self._driver = ctypes.CDLL("libcuda.so.1") if torch.version.cuda else None

    def warm_up(self) -> None:
        """Run for about 20 ms and learn the clock rate of the delay kernel."""
        cycles = 4_000_000
        for _ in range(5):
            self._start.record()
            torch.cuda._sleep(cycles)
            self._end.record()
            self._end.synchronize()
            self.evict(())
        self._cycles_per_us = cycles / (self._start.elapsed_time(self._end) * 1e3)

    def evict(self, tensors: Sequence[torch.Tensor]) -> None:
        """Flush the whole L2, including lines that were marked persisting."""
        if self._driver is not None:
            self._driver.cuCtxSetLimit(_LIMIT_PERSISTING_L2, ctypes.c_size_t(0))
            self._driver.cuCtxResetPersistingL2Cache()
        self._fill += 1
        self._scratch.fill_(self._fill)

    def delay(self, delay_us: float) -> None:
        """Keep the device busy for at least `delay_us`, bounded to 20 us .. 5 ms."""
        bounded = min(max(delay_us, _MIN_DELAY_US), MAX_DELAY_US)
        torch.cuda._sleep(int(bounded * self._cycles_per_us))

    def timed(self, call: Call, delay_us: float, after: Callable[[Any], Any] | None = None) -> tuple[Any, float, Any]:
        """One call between two events; `evict` comes first. Raises what `call` raises."""
        self.delay(delay_us)
        self._start.record()
        outputs = call()
        self._end.record()
        seen = after(outputs) if after else None
        self.synchronize()
        return outputs, self._start.elapsed_time(self._end) * 1e3, seen

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)
