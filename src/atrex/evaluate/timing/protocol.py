"""The interface of a timing protocol."""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]


class Protocol(abc.ABC):
    """Times single calls with a cold cache. Times are microseconds."""

    method: Literal["events", "monotonic"]
    shortest_delay_us: float = 0.0
    longest_delay_us: float = math.inf
    launch_us: float = 0.0

    def bounded(self, delay_us: float) -> float:
        """How long the device really waits where `delay_us` is asked for."""
        return min(max(delay_us, self.shortest_delay_us), self.longest_delay_us)

    @abc.abstractmethod
    def warm_up(self) -> None:
        """Bring the device to its working clocks."""

    @abc.abstractmethod
    def evict(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make the next access to `tensors` miss every cache."""

    @abc.abstractmethod
    def timed(
        self,
        call: Call,
        delay_us: float,
        after: Callable[[Any], Any] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> tuple[Any, float, Any]:
        """What `call` returned, its time, and what `after(outputs)` returned.

        On a device, `delay_us` of device-side work is queued before the start event, and `after` is queued on the
        current stream right behind the end event, before anything is waited for: work that the call left running
        on another stream or thread is not in what `after` reads. `ended` is called as soon as the end event has
        passed, which is when somebody with a clock of his own stops it.
        """

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for everything that was started, on every stream."""

    def idle_host_us(self, call: Call) -> float:
        """Host time until `call` returns, started on an idle device."""
        self.synchronize()
        start = time.perf_counter_ns()
        outputs = call()
        took = time.perf_counter_ns() - start
        self.synchronize()
        del outputs
        return took / 1e3

    @abc.abstractmethod
    def batch(
        self,
        call: Callable[[int], Any],
        count: int,
        delay_us: float,
        waiting: bool = False,
        keep: Callable[[int, Any], None] | None = None,
    ) -> Any:
        """`count` rounds of `call(i)` for a clock outside; returns the last call's outputs.

        `keep(i, outputs)` puts the outputs of call i where they stay. It is part of the batch: on a device it is queued
        behind the next flush, so that it reads outputs from memory whoever wrote them.

        On a device a round is flush, delay and call, and unless `waiting` nothing is waited for before the last: with
        a delay longer than a round's host time the device is never idle, so that the time of a round is device time
        alone. `waiting` is for a forward that waits for the device itself: then each round is a `timed` call. On the
        CPU a round is the call.
        """
