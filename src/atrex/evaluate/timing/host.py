"""CPU: the monotonic clock around the call, with the operands' cache lines evicted before it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from atrex.evaluate.timing.protocol import Call, Protocol


class HostProtocol(Protocol):
    """`evict` flushes the lines of the given tensors from every cache level (native code of `atrex.hardware`).

    Where a CPU cannot flush lines from user space, `sweep_bytes` (twice the last-level cache) of other memory are
    walked through instead.
    """

    method = "monotonic"

    def __init__(self, flush_library: str, sweep_bytes: int = 0):
        library = ctypes.CDLL(flush_library)
        self._flush, self._sweep = library.atrex_flush, library.atrex_sweep
        for function in (self._flush, self._sweep):
            function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
            function.restype = None
        self._other = torch.zeros(sweep_bytes, dtype=torch.uint8)

    def warm_up(self) -> None:
        """Wake the cores and the OpenMP pool."""
        stop = time.perf_counter() + 0.02
        work = torch.ones(1 << 16)
        while time.perf_counter() < stop:
            work = work * 1.0

    def evict(self, tensors: Sequence[torch.Tensor]) -> None:
        if tensors and self._other.numel():
            self._sweep(self._other.data_ptr(), self._other.numel())
            return
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._flush(storage.data_ptr() + tensor.storage_offset() * tensor.element_size(), tensor.nbytes)

    def timed(
        self,
        call: Call,
        delay_us: float,
        after: Callable[[Any], Any] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> tuple[Any, float, Any]:
        """One call by the monotonic clock; `delay_us` has no meaning here."""
        start = time.perf_counter_ns()
        outputs = call()
        took = (time.perf_counter_ns() - start) / 1e3
        if ended:
            ended()
        return outputs, took, after(outputs) if after else None

    def batch(
        self,
        call: Callable[[int], Any],
        count: int,
        delay_us: float,
        waiting: bool = False,
        keep: Callable[[int, Any], None] | None = None,
    ) -> Any:
        outputs = None
        for i in range(count):
            outputs = call(i)
            if keep:
                keep(i, outputs)
        return outputs

    def synchronize(self) -> None:
        pass
