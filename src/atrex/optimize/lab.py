"""Where a campaign measures: the judge, a contest of two kernels, and what can be seen of the incumbent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from atrex.errors import UserError
from atrex.hardware.chip import CPU
from atrex.optimize.model import Settings
from atrex.optimize.patience import GaveUp, noisy, wait_calm
from atrex.optimize.promotion import Round
from atrex.profiling.evidence import Evidence
from atrex.scoring.records import UnitRecord

PATIENCE = 600.0  # seconds for a profiler


class UnitFailed(Exception):
    """A unit of a contest did not pass. `of_candidate` says whose; `record` is its record."""

    def __init__(self, record: UnitRecord, of_candidate: bool):
        super().__init__(record.verdict.reason)
        self.record, self.of_candidate = record, of_candidate


class IncumbentFailed(UserError):
    """The incumbent stopped passing while it was contested: nothing was decided, and the step can be done again."""


class Pending(Exception):
    """A measurement that is made on another machine and is not here yet; the message says what to do."""


class Lab(Protocol):
    """Measures kernels. A kernel and another never share a process."""

    seconds: float | None
    """What the step at hand took where it was measured; None for a lab that measures when it is asked."""
    until: float | None
    """When a contest is to be given up, even within a round (time.monotonic()); None for no such time."""

    def judge(self, source: Path) -> list[UnitRecord]:
        """Records of all the campaign's shapes, with seeds and inputs that no earlier call has used."""

    @contextmanager
    def contest(self, incumbent: Path, candidate: Path) -> Iterator[Round]:
        """Something that measures both once, shape after shape, in a drawn order. It raises UnitFailed and GaveUp."""

    @contextmanager
    def heat(self, incumbent: Path, candidate: Path) -> Iterator[Round]:
        """As a contest, without GaveUp; its rounds select who is contested, and no contest uses them again."""

    def look(self, source: Path, shape: str) -> Evidence | None:
        """What a profiler says of a kernel on one shape; None where there is none."""


class LocalLab:
    """The judge on a device of this machine. With `runs`, a run directory of each judgement stays below it."""

    seconds = None
    until: float | None = None

    def __init__(self, settings: Settings, runs: Path | None = None):
        self._settings, self._runs, self._judged = settings, runs, 0

    def judge(self, source: Path) -> list[UnitRecord]:
        from atrex.evaluate.api import evaluate

        s = self._settings
        self._judged += 1
        out = self._runs / f"judge-{self._judged}" if self._runs else None
        records = evaluate(source, s.operator, s.shapes, s.device, dsl=s.dsl_of(source), suite=s.suite_path, out=out)
        return [record for record in records if not record.held_out or record.verdict.status != "passed"]

    @contextmanager
    def contest(self, incumbent: Path, candidate: Path) -> Iterator[Round]:
        until = min(self.until or math.inf, time.monotonic() + self._settings.contest_s)

        def before() -> None:
            if time.monotonic() >= until:
                raise GaveUp("the time for it is over")
            if self._settings.device == CPU:
                wait_calm()

        with self.heat(incumbent, candidate, before) as measure:

            def bounded(shapes=None):
                try:
                    return measure(shapes)
                except UnitFailed as failed:
                    if noisy(failed.record):
                        raise GaveUp(f"a unit of shape {failed.record.shape} could not be timed: {failed}") from None
                    raise

            yield bounded

    @contextmanager
    def heat(self, incumbent: Path, candidate: Path, before: Callable[[], None] = lambda: None) -> Iterator[Round]:
        from atrex.evaluate.versus import Bout, Match, Stopped

        s = self._settings
        of = (s.dsl_of(incumbent), s.dsl_of(candidate))
        match = Match(str(incumbent), str(candidate), s.operator, ",".join(s.shapes), of, s.device, suite=s.suite_path)
        with Bout(match) as bout:

            def measure(shapes=None):
                try:
                    return bout.round(shapes, before)
                except Stopped as stopped:
                    raise UnitFailed(stopped.record, stopped.record.candidate == str(candidate)) from None

            yield measure

    def look(self, source: Path, shape: str) -> Evidence | None:
        from atrex.problems.load import load_suite

        s = self._settings
        problem = load_suite(s.suite_path).problem(s.operator)
        if not s.device.startswith("cuda"):
            from atrex.optimize.look_cpu import look_cpu

            return look_cpu(source, problem, problem.shape(shape), s.dsl_of(source), PATIENCE)
        from atrex.optimize.look_cuda import look_cuda

        return look_cuda(source, problem, problem.shape(shape), s.dsl_of(source), s.device, PATIENCE)
