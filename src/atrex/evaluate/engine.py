"""Engines: what brings units to judges. An engine yields records in whatever order they come, each unit once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import Setup
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.model import Suite
from atrex.scoring.records import Status, UnitRecord, Verdict


@dataclass(frozen=True)
class Terms:
    """How every unit of a run is judged. It holds the secret: it goes to judges by pipe, never by file or argument."""

    secret: bytes
    seed_count: int
    budgets: Budgets
    timed_calls: int | None = None
    readiness: bool = True
    confirm: bool = False
    suite: Path | None = None
    hidden: tuple[str, ...] = ()
    fresh: bool = False
    """Every unit in a process of its own, also where units of one candidate could share one."""

    @property
    def seeds(self) -> Seeds:
        return Seeds(self.secret)


@dataclass(frozen=True)
class UnitName:
    """A unit as it travels between processes: what it is called, and the candidate's text."""

    candidate: Candidate
    operator: str
    shape: str
    dsl: str
    held_out: bool

    @classmethod
    def of(cls, unit: Unit) -> UnitName:
        return cls(unit.candidate, unit.problem.operator, unit.shape.id, unit.dsl, unit.held_out)

    def unit(self, suite: Suite) -> Unit:
        problem = suite.problem(self.operator)
        shape = problem.held_out[self.shape] if self.held_out else problem.shape(self.shape)
        return Unit(self.candidate, problem, shape, self.dsl, self.held_out)


class Engine(Protocol):
    """`judge` yields a record for every unit, each once. `measured` is what run.json says about the devices."""

    measured: dict[str, Any]

    def judge(self, units: Iterable[Unit]) -> Iterator[UnitRecord]: ...

    def close(self) -> None: ...


class Serial:
    """One judge, in this process."""

    def __init__(self, setup: Setup, terms: Terms, watch: Callable[[str, UnitName | None], None]):
        self._setup, self._terms, self._watch = setup, terms, watch
        self.measured = measured(setup)

    def judge(self, units: Iterable[Unit]) -> Iterator[UnitRecord]:
        self._setup.reuses = reuses(self._setup, self._terms)
        for unit in units:
            self._watch(str(self._setup.device), UnitName.of(unit))
            yield judge_unit(self._setup, unit, self._terms)
        self._setup.let_go()
        if self._setup.collector_fault:
            self.measured["adoption"] = f"not measured: {self._setup.collector_fault}"

    def close(self) -> None:
        self._setup.close()


def reuses(setup: Setup, terms: Terms) -> bool:
    """Whether units of one candidate share a process: on a GPU, where starting one takes as long as timing a unit."""
    return setup.device.type == "cuda" and not terms.fresh


def judge_unit(setup: Setup, unit: Unit, terms: Terms) -> UnitRecord:
    """One unit under the run's terms."""
    clocks = _clocks(setup)
    return UnitJudge(setup, unit, clocks, readiness=terms.readiness, confirm=terms.confirm).run()


def _clocks(setup: Setup):
    import torch

    if setup.device.type != "cuda" or not torch.version.cuda:
        return None
    from atrex.profiling.nvml import clocks

    return lambda: clocks(setup.device.index)


def lost(name: UnitName, device: str, chip: str, reason: str, node: str | None = None) -> UnitRecord:
    """The record of a unit that no judge could finish."""
    return UnitRecord(
        candidate=name.candidate.name,
        candidate_sha256=name.candidate.sha256,
        operator=name.operator,
        shape=name.shape,
        held_out=name.held_out,
        device=device,
        node=node,
        chip=chip,
        dsl=name.dsl,
        baseline=name.candidate.origin,
        verdict=Verdict(status=Status.ERROR, category="unstable", reason=reason),
    )


BUSY_SHARE = 0.5  # of the cited bandwidth: a quiet device copies at 80 to 95 % of it


def measured(setup: Setup) -> dict[str, Any]:
    """What run.json says about a device: chip, floor, what the way to a worker costs, the sentinel, confinement."""
    base, sentinel = setup.baseline, setup.sentinel
    found: dict[str, Any] = {
        "chip": setup.chip.id,
        "floor_us": base.floor_us,
        "null_us": base.null_us,
        "round_trip_us": base.round_trip_us,
        "worker_versions": setup.zygote.versions,
        "confinement": setup.confinement,
        "sentinel": None,
    }
    if sentinel is not None:
        share = sentinel.bandwidth / setup.chip.memory_bandwidth
        found["sentinel"] = {
            "baseline_us": sentinel.baseline_us, "bandwidth_share": share, "busy_at_start": share < BUSY_SHARE,
        }  # fmt: skip
    return found
