"""CUDA: device events behind a cache flush and a device-side delay, so that launch latency is hidden."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from atrex.evaluate.timing.protocol import Call, Protocol

_LIMIT_PERSISTING_L2 = 0x06  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
_ATTRIBUTE_CLOCK_RATE = 13  # CU_DEVICE_ATTRIBUTE_CLOCK_RATE, peak, in kHz
_DEFAULT_CYCLES_PER_US = 2000.0


def start_driver() -> None:
    """Start the driver, which takes longer than a context and makes none (CUDA; elsewhere nothing is done)."""
    if torch.version.cuda:
        ctypes.CDLL("libcuda.so.1").cuInit(0)


class CudaProtocol(Protocol):
    """`evict` overwrites twice the L2: it leaves the cache full of dirty lines that are nobody's operands.

    Dirty lines matter: with a clean cache the writes of an output smaller than the L2 would never reach memory
    within the call, and an honest kernel could beat Q / B.
    """

    method = "events"
    shortest_delay_us = 20.0
    longest_delay_us = 5000.0

    def __init__(self, device: torch.device):
        self.device = device
        torch.cuda.set_device(device)
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        self._scratch = torch.empty(2 * l2 // 4 + 4, dtype=torch.int32, device=device)
        self._fill = 0
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._driver = ctypes.CDLL("libcuda.so.1") if torch.version.cuda else None
        self._forget_lines()
        self._cycles_per_us = self._peak_cycles_per_us()
        self.launch_us = 0.0
        """Host time of the last timed call from its queued delay to its queued end: the delay has to be longer."""

    def _peak_cycles_per_us(self) -> float:
        # The device's peak clock, not a measured one: judge and worker must ask for the same number of cycles.
        if self._driver is None:
            return _DEFAULT_CYCLES_PER_US
        khz = ctypes.c_int()
        code = self._driver.cuDeviceGetAttribute(ctypes.byref(khz), _ATTRIBUTE_CLOCK_RATE, self.device.index or 0)
        return khz.value / 1e3 if code == 0 and khz.value else _DEFAULT_CYCLES_PER_US

    def warm_up(self) -> None:
        """Keep the device busy for about 10 ms."""
        for _ in range(2):
            torch.cuda._sleep(int(5000 * self._cycles_per_us))
            self.evict(())
        self.synchronize()

    def evict(self, tensors: Sequence[torch.Tensor]) -> None:
        """Flush the whole L2, including lines that were marked persisting."""
        if self._may_keep_lines():
            self._forget_lines()
        self._overwrite()

    def _may_keep_lines(self) -> bool:
        """Whether somebody has set room for persisting lines aside since the protocol took it away.

        Setting it goes to the kernel's driver, where other processes that start or end stand in the way; asking stays
        in this process.
        """
        if self._driver is None:
            return False
        room = ctypes.c_size_t()
        return self._driver.cuCtxGetLimit(ctypes.byref(room), _LIMIT_PERSISTING_L2) != 0 or room.value != 0

    def _forget_lines(self) -> None:
        if self._driver is not None:
            self._driver.cuCtxSetLimit(_LIMIT_PERSISTING_L2, ctypes.c_size_t(0))
            self._driver.cuCtxResetPersistingL2Cache()

    def _overwrite(self) -> None:
        self._fill += 1
        self._scratch.fill_(self._fill)

    def delay(self, delay_us: float) -> None:
        """Keep the device busy for at least `delay_us`, as far as it is `bounded`."""
        torch.cuda._sleep(int(self.bounded(delay_us) * self._cycles_per_us))

    def timed(
        self,
        call: Call,
        delay_us: float,
        after: Callable[[Any], Any] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> tuple[Any, float, Any]:
        """One call between two events; `evict` comes first. Raises what `call` raises."""
        self.delay(delay_us)
        queued = time.perf_counter_ns()
        self._start.record()
        outputs = call()
        self._end.record()
        self.launch_us = (time.perf_counter_ns() - queued) / 1e3
        seen = after(outputs) if after else None
        self._end.synchronize()
        if ended:
            ended()
        self.synchronize()
        return outputs, self._start.elapsed_time(self._end) * 1e3, seen

    def batch(
        self,
        call: Callable[[int], Any],
        count: int,
        delay_us: float,
        waiting: bool = False,
        keep: Callable[[int, Any], None] | None = None,
    ) -> Any:
        outputs = None
        self.evict(())
        for i in range(count):
            self._overwrite()
            if keep and i:
                keep(i - 1, outputs)
            if waiting:
                outputs = self.timed(partial(call, i), delay_us)[0]
            else:
                self.delay(delay_us)
                outputs = call(i)
        if keep:
            self._overwrite()
            keep(count - 1, outputs)
        self.synchronize()
        return outputs

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)
