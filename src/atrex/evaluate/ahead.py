"""Workers that are started before they are needed, so that no unit waits for its process.

A worker starts in two steps. It is forked, and loads its libraries and starts the driver, which takes nothing from a
device; then it makes its context there, which does. Both take longer than judging a short unit leaves time for between
two timings, so there are two of them: one is up when a unit begins, the other comes up during it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from atrex.evaluate.lease import Alone, Lease
from atrex.evaluate.spawn import Worker, WorkerDied, WorkerTimeout

DEPTH = 2


@dataclass
class _Coming:
    worker: Worker
    started: Future[None] | None = None


class Ahead:
    """A queue of workers. Contexts are made in a thread of its own, in turns of their own on the device."""

    def __init__(self, fork: Callable[[], Worker]):
        self._fork = fork
        self._queue: deque[_Coming] = deque()
        self._starter = ThreadPoolExecutor(1, "starter")

    def fill(self) -> None:
        """Fork what is missing."""
        while len(self._queue) < DEPTH:
            self._queue.append(_Coming(self._fork()))

    def start(self, lease: Lease | Alone) -> None:
        """Have those that are forked make their contexts, beside whatever the judge does until `settle` or `take`."""
        for coming in self._queue:
            if coming.started is None:
                coming.started = self._starter.submit(_start, coming.worker, lease)

    def settle(self) -> None:
        """Wait until none is making its context. Not to be called with the device in hand: others may wait for it."""
        for coming in self._queue:
            if coming.started is not None:
                coming.started.exception()

    def take(self) -> Worker | None:
        """The first one that is up, after a wait for it as in `settle`; None where none has begun to start."""
        while self._queue and self._queue[0].started is not None:
            coming = self._queue.popleft()
            try:
                coming.started.result()
                if coming.worker.waits:
                    return coming.worker
            except (WorkerDied, WorkerTimeout):
                pass
            coming.worker.close()  # it did not come up, or ended since; nobody's fault, and another one may do better
        return None

    def discard(self) -> None:
        """End all of them."""
        for coming in self._queue:
            coming.worker.kill()  # one that makes its context makes it no more
        self.settle()
        while self._queue:
            self._queue.popleft().worker.close()

    def close(self) -> None:
        self.discard()
        self._starter.shutdown()


def _start(worker: Worker, lease: Lease | Alone) -> None:
    with lease.beside():
        worker.start()
