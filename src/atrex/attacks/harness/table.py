"""The table of attacks: every cheat and every twin judged, what came of them, and whether that is right."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil

from atrex.attacks.harness.declare import Attack, Form
from atrex.attacks.harness.expect import twin_fault
from atrex.attacks.harness.sources import DSL, candidate_source
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.rundir import RunDirectory
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import Setup, prepare
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite
from atrex.problems.model import Suite
from atrex.scoring.records import UnitRecord

SEEDS = 2
TIMED_CALLS = {"cpu": 20, "cuda": 40}
BUDGETS = Budgets(compile=90, execution=1.5, performance=10)
GONE_WITHIN = 3.0  # seconds for the processes of a killed worker to disappear


@dataclass(frozen=True)
class Row:
    """One cheat and its twin. `fault` says what is not as it must be; None when all is."""

    attack: str
    cheat: str
    ways: tuple[int, ...]
    expected: str
    record: UnitRecord
    twin: UnitRecord
    fault: str | None

    @property
    def name(self) -> str:
        return row_name(self.attack, self.cheat)

    def as_json(self) -> dict[str, Any]:
        """What the committed record of a table holds of it."""
        return {
            "attack": self.attack, "cheat": self.cheat, "ways": list(self.ways), "expected": self.expected,
            "operator": self.record.operator, "shape": self.record.shape, "right": self.fault is None,
            "fault": self.fault, "outcome": _outcome(self.record), "twin": _outcome(self.twin),
        }  # fmt: skip


def row_name(attack: str, cheat: str) -> str:
    """What a row is called: its attack, and which of several cheats."""
    return f"{attack}: {cheat}" if cheat else attack


def _outcome(record: UnitRecord) -> dict[str, Any]:
    timed = record.performance
    return record.verdict.model_dump(mode="json") | {
        "adoption": record.adoption.share if record.adoption else None,
        "median_us": timed.median_us if timed else None,
        "slope_us": timed.slope_us if timed else None,
        "seconds": round(record.seconds, 2),
    }


class Table:
    """Judges attacks on one device, with one zygote for all. A context manager; raises UserError for a bad device."""

    def __init__(self, device: str):
        self.device_type = device.split(":")[0]
        self.device = device
        self.folder = Path(tempfile.mkdtemp(prefix="atrex-attacks-"))
        self.seeds = Seeds()
        self.setup: Setup | None = None
        self.run_directory: RunDirectory | None = None

    def __enter__(self) -> Table:
        try:
            self.run_directory = RunDirectory.create(self.folder / "run", {}, self.seeds)
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.setup is not None:
            self.setup.close()
        if self.run_directory is not None:
            self.run_directory.close(finished=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _prepare(self) -> None:
        calls = TIMED_CALLS[self.device_type]
        self.setup = prepare(self.device, self.seeds, SEEDS, BUDGETS, calls, hidden=[self.folder])

    def run(self, name: str, attack: Attack, slow: bool = True) -> list[Row]:
        """Judge the forms of one attack that run on this device: its cheats, then the twin behind them.

        A twin that comes out wrong is judged once more: other load on the machine can do that once.
        """
        rows = []
        for form in attack.forms:
            if self.device_type not in form.devices or (form.slow and not slow):
                continue
            judged = {label: self._judge(name, form, source) for label, source in form.cheats.items()}
            twin, left = self._judge(name, form, form.twin)
            if twin_fault(twin, form.dominant):
                twin, left = self._judge(name, form, form.twin)
            for label, (record, remains) in judged.items():
                fault = _fault(form, record, twin, remains or left)
                rows.append(Row(name, label, attack.ways, form.expect.text, record, twin, fault))
        return rows

    def _judge(self, name: str, form: Form, text: str) -> tuple[UnitRecord, int]:
        """The record of one candidate, and how many processes of its were left."""
        source = candidate_source(form, text, self.device_type)
        path = self.folder / f"{form.operator}.py"
        path.write_text(source)
        problem = _suite(form.suite).problem(form.operator)
        candidate = Candidate(path, name, name, form.operator, source)
        unit = Unit(candidate, problem, problem.shape(form.shape(self.device_type)), DSL[self.device_type])
        seconds = form.execution or BUDGETS.execution
        self.setup.budgets = replace(BUDGETS, execution=seconds)
        before = named(form.leaves)
        with self._limited(form.limits):
            record = UnitJudge(self.setup, unit).run()
        return record, len(remaining(form.leaves, before))

    @contextlib.contextmanager
    def _limited(self, limits: Mapping[str, int]) -> Iterator[None]:
        """Other limits for the workers that are forked meanwhile."""
        zygote = self.setup.zygote
        usual = zygote.limits
        if limits:
            self._discard()
            zygote.limits = replace(usual, **limits)
        try:
            yield
        finally:
            if limits:
                self._discard()
            zygote.limits = usual

    def _discard(self) -> None:
        """End the worker that was forked ahead: it has the limits of when it was forked."""
        ahead, self.setup._next = self.setup._next, None
        if ahead is not None:
            ahead.close()


@cache
def _suite(name: str | None) -> Suite:
    return load_suite(Path(str(files("atrex.attacks").joinpath("problems", name))) if name else None)


def _fault(form: Form, record: UnitRecord, twin: UnitRecord, left: int) -> str | None:
    if not form.expect.holds(record, twin):
        return f"cheat: expected {form.expect.text}"
    if left:
        return f"cheat: {left} of its processes ran on"
    fault = twin_fault(twin, form.dominant)
    return f"twin: {fault}" if fault else None


def named(name: str | None) -> set[int]:
    """The living processes of this name; none for None."""
    found = set()
    for process in psutil.process_iter() if name else ():
        with contextlib.suppress(psutil.Error):
            if process.name() == name and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def remaining(name: str | None, before: set[int]) -> set[int]:
    """Processes of this name, beside those from `before`, that are still there after a while; they are ended then."""
    deadline = time.monotonic() + GONE_WITHIN
    while (found := named(name) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 9)
    return found


def run_table(device: str, chosen: Mapping[str, Attack], slow: bool = True) -> Iterator[Row]:
    """Judge `chosen` on `device`, attack after attack. Raises UserError for a device that is not there."""
    with Table(device) as table:
        for name, attack in chosen.items():
            yield from table.run(name, attack, slow)
