"""Several judges on one machine: one or more per device, each a process of its own, fed from one queue.

Judges of one device share it by a lease: they compile and check side by side, and time alone. A judge that dies costs
the unit that it had in hand, which is tried once more by another.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.budgets import predicted_seconds
from atrex.evaluate.engine import Terms, UnitName, lost
from atrex.evaluate.judge_process import serve
from atrex.evaluate.unit import Unit
from atrex.scoring.records import UnitRecord

_START_SECONDS = 180.0
_CONTEXT = multiprocessing.get_context("spawn")  # a fork of a process with a device is not usable


@dataclass
class _Judge:
    """One child process. `unit` is what it has in hand, `last` the (candidate, operator) that it has caches of."""

    device: str
    process: Any
    connection: Connection
    longest: bool = False
    """Whether it takes the longest units first: one judge of a device that has several."""
    unit: int | None = None
    last: tuple[str, str] | None = None
    ready: bool = False


@dataclass
class Queue:
    """Units not yet given out, by (candidate, operator). A judge goes on with the group it has compiled for.

    Units that are `apart` are in no group: judging one of them is many seconds of references, beside the few tenths of
    a second for which a short one needs the device alone. Two of them side by side only slow each other down, so one
    judge takes them one by one while the others fill its gaps.
    """

    cost: list[float]
    groups: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    apart: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, units: list[Unit], apart: bool = False) -> Queue:
        """`apart`: keep the costliest units, half of the whole cost, for a judge that takes the longest."""
        queue = cls([predicted_seconds(unit.problem.work(unit.shape)) for unit in units])
        half, total = sum(queue.cost) / 2, 0.0
        for i in sorted(range(len(units)), key=lambda i: queue.cost[i], reverse=True):
            total += queue.cost[i]
            if apart and (total <= half or not queue.apart):  # the costliest one always
                queue.apart.insert(0, i)
            else:
                queue.groups[units[i].candidate.name, units[i].problem.operator].insert(0, i)
        return queue  # the longest is taken first, from the end

    def take(
        self, last: tuple[str, str] | None, busy: Iterable[tuple[str, str] | None], longest: bool = False
    ) -> int | None:
        """The next unit for a judge: of its own group, else of the costliest one, groups without a judge first.

        `longest`: one of those apart while there are any; other judges take them when nothing else is left.
        """
        open_groups = {group: members for group, members in self.groups.items() if members}
        if self.apart and (longest or not open_groups):
            return self.apart.pop()
        if not open_groups:
            return None
        if last not in open_groups:
            taken = set(busy)
            last = max(open_groups, key=lambda g: (g not in taken, sum(self.cost[i] for i in open_groups[g])))
        return open_groups[last].pop()

    def put_back(self, unit: int, group: tuple[str, str]) -> None:
        self.groups[group].append(unit)


class Pool:
    """An engine of `per_device` judges on each of `devices`."""

    def __init__(
        self, devices: list[str], per_device: int, terms: Terms,
        watch: Callable[[str, UnitName | None], None] = lambda device, unit: None,
    ):  # fmt: skip
        """`watch(device, unit)` is called when a judge of a device begins a unit. Raises UserError if none starts."""
        self._terms, self._watch = terms, watch
        self._folder = tempfile.TemporaryDirectory(prefix="atrex-pool-")
        self.measured: dict[str, Any] = {"devices": {}, "judges_per_device": per_device}
        self._judges = [self._start(device, per_device > 1 and i == 0) for device in devices for i in range(per_device)]
        try:
            for judge in self._judges:
                self._await_ready(judge)
        except BaseException:
            self.close()
            raise
        self.measured |= next(iter(self.measured["devices"].values()))

    def judge(self, units: Iterable[Unit]) -> Iterator[UnitRecord]:
        """Records as they come. A unit whose judge has died twice is recorded as `unstable`."""
        units = list(units)
        names = [UnitName.of(unit) for unit in units]
        queue, tried, left = Queue.of(units, any(j.longest for j in self._judges)), defaultdict(int), len(units)
        for judge in self._judges:
            self._give(judge, queue, names)
        while left:
            for connection in wait([judge.connection for judge in self._judges]):
                judge = next(j for j in self._judges if j.connection is connection)
                unit = judge.unit
                try:
                    record = UnitRecord.model_validate_json(connection.recv())
                except (EOFError, OSError):
                    replacement = self._replace(judge)
                    if unit is not None:
                        tried[unit] += 1
                        if tried[unit] > 1:
                            left -= 1
                            yield self._lost(names[unit], judge)
                        else:
                            queue.put_back(unit, (names[unit].candidate.name, names[unit].operator))
                    judge = replacement
                else:
                    left -= 1
                    yield record
                self._give(judge, queue, names)

    def close(self) -> None:
        for judge in self._judges:
            with contextlib.suppress(OSError):
                judge.connection.send(None)
        for judge in self._judges:
            judge.process.join(10)
            if judge.process.is_alive():
                judge.process.kill()
                judge.process.join()
            judge.connection.close()
        self._folder.cleanup()

    # -- judges ----------------------------------------------------------------------------------------------------

    def _start(self, device: str, longest: bool) -> _Judge:
        ours, theirs = _CONTEXT.Pipe()
        lease = Path(self._folder.name) / device.replace(":", "-")
        process = _CONTEXT.Process(target=serve, args=(theirs, device, str(lease)), daemon=False)
        process.start()
        theirs.close()
        ours.send(self._terms)
        return _Judge(device, process, ours, longest)

    def _await_ready(self, judge: _Judge) -> None:
        if not judge.connection.poll(_START_SECONDS):
            raise UserError(f"a judge on {judge.device} did not start within {_START_SECONDS:g} s")
        try:
            kind, value = judge.connection.recv()
        except EOFError:
            raise UserError(f"a judge on {judge.device} ended while it started") from None
        if kind == "error":
            raise UserError(value)
        judge.ready = True
        self.measured["devices"].setdefault(judge.device, value)

    def _replace(self, judge: _Judge) -> _Judge:
        judge.process.join(1)
        judge.process.kill()
        judge.connection.close()
        fresh = self._start(judge.device, judge.longest)
        self._await_ready(fresh)
        self._judges[self._judges.index(judge)] = fresh
        return fresh

    def _give(self, judge: _Judge, queue: Queue, names: list[UnitName]) -> None:
        others = [j.last for j in self._judges if j is not judge and j.unit is not None]
        judge.unit = queue.take(judge.last, others, judge.longest)
        if judge.unit is None:
            self._watch(judge.device, None)
            return
        name = names[judge.unit]
        judge.last = (name.candidate.name, name.operator)
        self._watch(judge.device, name)
        with contextlib.suppress(OSError):  # it has died: reading from it will say so
            judge.connection.send(name)

    def _lost(self, name: UnitName, judge: _Judge) -> UnitRecord:
        reason = f"two judges ended while they had it in hand, the last with exit code {judge.process.exitcode}"
        return lost(name, judge.device, self.measured["devices"][judge.device]["chip"], reason)
