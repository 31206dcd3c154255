"""The queue between requests and judges: a thread for each judge takes one request after the other."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.engine import Terms, UnitName, lost
from atrex.scoring.records import UnitRecord
from atrex.serve.order import Limits, Order, Refused
from atrex.serve.process import JudgeLost, JudgeProcess, OutOfTime


class Unfinished(Refused):
    """A request whose time was used up: `records` are those of the units that were judged."""

    def __init__(self, line: str, records: list[UnitRecord]):
        super().__init__(503, line)
        self.records = records


@dataclass
class Job:
    """A request in the queue or in hand. Its `result` is a list of records, or raises Refused."""

    order: Order
    result: Future[list[UnitRecord]] = field(default_factory=Future)
    abandoned: bool = False
    """Nobody waits for it any more: set by `Service.abandon`."""


class Service:
    """Judges on `devices` and their queue."""

    def __init__(self, devices: list[str], terms: Terms, limits: Limits):
        """Returns when every judge is ready; raises UserError when one does not start. `terms`: common to requests."""
        self.devices, self.terms, self.limits = devices, terms, limits
        self._waiting: deque[Job] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._judged = self._restarts = 0
        self._judges: dict[str, JudgeProcess | None] = {}
        self._busy: dict[str, Job] = {}
        try:
            for device in devices:
                self._judges[device] = JudgeProcess(device, terms)
        except BaseException:
            self._end_judges()
            raise
        self.measured = next((judge.measured for judge in self._judges.values()), {})
        self._threads = [threading.Thread(target=self._work, args=(device,), daemon=True) for device in devices]
        for thread in self._threads:
            thread.start()

    def submit(self, order: Order) -> Job:
        """Queue an order. Raises Refused: 429 when the queue is full, 503 when the service ends."""
        with self._change:
            if self._closed:
                raise Refused(503, "the service is ending")
            if len(self._waiting) >= self.limits.queue:
                raise Refused(429, f"{self.limits.queue} requests are waiting; try again later")
            job = Job(order)
            self._waiting.append(job)
            self._change.notify()
            return job

    def abandon(self, job: Job) -> None:
        """Nobody wants the answer: it leaves the queue, or ends after the unit that is in hand."""
        with self._change:
            job.abandoned = True
            if job in self._waiting:
                self._waiting.remove(job)
                job.result.cancel()

    def state(self) -> dict[str, Any]:
        """What GET /health says."""
        with self._change:
            ready = sum(judge is not None for judge in self._judges.values())
            return {
                "status": "ending" if self._closed else "ready" if ready else "starting",
                "devices": self.devices,
                "judges_ready": ready,
                "waiting": len(self._waiting),
                "judging": len(self._busy),
                "units_judged": self._judged,
                "judges_restarted": self._restarts,
            }

    def refuse(self) -> None:
        """Take nothing more, and answer what waits or is in hand with 503."""
        with self._change:
            self._closed = True
            left = [*self._waiting, *self._busy.values()]
            self._waiting.clear()
            self._change.notify_all()
        for job in left:
            _fail(job, Refused(503, "the service is ending"))

    def close(self) -> None:
        """`refuse`, and end the judges. Safe to call again."""
        self.refuse()
        self._end_judges()
        for thread in self._threads:
            thread.join(15)

    # -- the threads -----------------------------------------------------------------------------------------------

    def _end_judges(self) -> None:
        for device, judge in self._judges.items():
            if judge is None:
                continue
            if device in self._busy:
                judge.kill()
            else:
                judge.close()

    def _work(self, device: str) -> None:
        while True:
            self._restart(device)
            with self._change:
                while not self._waiting and not self._closed:
                    self._change.wait()
                if self._closed:
                    return
                job = self._busy[device] = self._waiting.popleft()
            try:
                records = self._judge(device, job)
                if not job.result.done():
                    job.result.set_result(records)
            except Exception as error:  # noqa: BLE001 - the thread must live, and somebody waits for an answer
                refused = isinstance(error, Refused)
                if not refused:
                    print(f"serve-judge: {type(error).__name__}: {error}", file=sys.stderr)
                _fail(job, error if refused else Refused(503, "the judge failed; see the service's own log"))
            finally:
                with self._change:
                    del self._busy[device]
                if judge := self._judges[device]:
                    judge.forget()

    def _restart(self, device: str) -> JudgeProcess | None:
        """The device's judge, a new one if there is none; None, with a line in the log, when it does not start."""
        if self._judges[device] is None and not self._closed:
            try:
                fresh = JudgeProcess(device, self.terms)
            except UserError as error:
                print(f"serve-judge: {error}", file=sys.stderr)
                return None
            with self._change:
                self._restarts += 1
                self._judges[device] = fresh
                closed = self._closed
            if closed:
                fresh.close()
        return self._judges[device]

    def _judge(self, device: str, job: Job) -> list[UnitRecord]:
        deadline = time.monotonic() + self.limits.seconds
        records: list[UnitRecord] = []
        for name in job.order.units:
            if job.abandoned:
                break
            try:
                records.append(self._unit(device, name, job.order.terms, deadline))
            except OutOfTime:
                done, planned = len(records), len(job.order.units)
                line = f"not judged within {self.limits.seconds:g} s: {done} of {planned} units were; name fewer shapes"
                raise Unfinished(line, records) from None
            with self._change:
                self._judged += 1
        return records

    def _unit(self, device: str, name: UnitName, terms: Terms, deadline: float) -> UnitRecord:
        """The unit's record; a judge that is lost costs a second attempt, two make it `unstable`."""
        ends: list[str] = []
        while len(ends) < 2:
            judge = self._restart(device)
            if self._closed:
                raise Refused(503, "the service is ending")
            if judge is None:
                raise Refused(503, "the judge could not be started; see the service's own log")
            try:
                return judge.judge(name, terms, deadline - time.monotonic())
            except JudgeLost as end:
                ends.append(str(end))
                self._drop(device)
            except OutOfTime:
                self._drop(device)
                raise
        reason = f"two judges ended while they had it in hand, the last with {ends[-1]}"
        return lost(name, device, self.measured["chip"], reason)

    def _drop(self, device: str) -> None:
        with self._change:
            self._judges[device] = None


def _fail(job: Job, error: Refused) -> None:
    if not job.result.done():
        job.result.set_exception(error)
