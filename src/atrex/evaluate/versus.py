"""Measuring two candidates against each other: the same gates, fresh processes, orders and inputs drawn anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import resolve
from atrex.evaluate.plan import make_plan
from atrex.evaluate.run import device_name, versions
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import prepare, resolve_device
from atrex.evaluate.spawn import Zygote
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite
from atrex.scoring.comparison import MIN_ROUNDS, Comparison, Pair, compare_times
from atrex.scoring.records import Status, UnitRecord


@dataclass(frozen=True)
class Match:
    """What is compared: candidate files A and B, the operator, and how."""

    a: str
    b: str
    problem: str | None = None
    shapes: str | None = None
    dsl: str | tuple[str, str] | None = None
    """Of both, or of A and of B; None: as their imports say."""
    device: str = "cpu"
    rounds: int = 6
    confidence: float = 0.95
    margin: float = 0.0
    budgets: Budgets = Budgets()
    suite: Path | None = None


@dataclass(frozen=True)
class Result:
    """`comparison` is None when a unit of A or B did not pass: then `stopped` is its record."""

    operator: str
    comparison: Comparison | None
    times: dict[str, list[Pair]]
    stopped: UnitRecord | None
    about: dict[str, Any]


Progress = Callable[[int, int], None]


class Stopped(Exception):
    """A unit of A or B did not pass; `record` is its record."""

    def __init__(self, record: UnitRecord):
        super().__init__(record.verdict.reason)
        self.record = record


class Bout:
    """Two candidates set against each other. A context manager; raises UserError for bad input.

    Each measurement is a whole judged unit with one seed, spot checks and the judge's own clock, so that a kernel
    cannot win by being wrong, in a worker of its own: A and B never share a process.
    """

    def __init__(self, match: Match, zygote: Zygote | None = None, progress: Callable[[], None] = lambda: None):
        device = resolve_device(match.device)
        self._pairs = {a.shape.id: (a, b) for a, b in _units(match, device.type)}
        self._progress, self._rng = progress, random.SystemRandom()
        hidden = [str(Path(path).resolve()) for path in (match.a, match.b, match.suite) if path]
        self._setup = prepare(str(device), Seeds(), 1, match.budgets, None, zygote, hidden)
        self.operator = next(iter(self._pairs.values()))[0].problem.operator
        self.about = {
            "a": match.a, "b": match.b, "operator": self.operator, "rounds": match.rounds,
            "device": device_name(device), "versions": versions(), "confidence": match.confidence,
            "margin": match.margin,
        }  # fmt: skip

    def __enter__(self) -> Bout:
        return self

    def __exit__(self, *_: object) -> None:
        self._setup.close()

    @property
    def shapes(self) -> list[str]:
        return list(self._pairs)

    def round(
        self, shapes: Collection[str] | None = None, before: Callable[[], None] = lambda: None
    ) -> dict[str, Pair]:
        """Times of A and B by shape, each measured once, with new seeds and in an order drawn anew. Raises Stopped.

        `before` is called before each shape; what it raises ends the round, of which nothing is left.
        """
        self._setup.seeds = Seeds()
        wanted = [shape for shape in self._pairs if shapes is None or shape in shapes]
        found: dict[str, Pair] = {}
        for shape in self._rng.sample(wanted, len(wanted)):
            before()
            times: dict[str, float] = {}
            for side in self._rng.sample(("a", "b"), 2):
                record = UnitJudge(self._setup, self._pairs[shape]["ab".index(side)]).run()
                if record.verdict.status is not Status.PASSED:
                    raise Stopped(record)
                times[side] = record.performance.median_us
                self._progress()
            found[shape] = (times["a"], times["b"])
        return found


def versus(match: Match, progress: Progress = lambda done, planned: None, zygote: Zygote | None = None) -> Result:
    """Judge A and B in turn, round after round. Raises UserError for bad input."""
    if match.rounds < MIN_ROUNDS:
        raise UserError(f"--rounds {match.rounds}: expected at least {MIN_ROUNDS}")
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, 2 * match.rounds * len(times))

    with Bout(match, zygote, step) as bout:
        times: dict[str, list[Pair]] = {shape: [] for shape in bout.shapes}
        try:
            for _ in range(match.rounds):
                for shape, pair in bout.round().items():
                    times[shape].append(pair)
        except Stopped as stopped:
            return Result(bout.operator, None, times, stopped.record, bout.about)
    return Result(bout.operator, compare_times(times, match.confidence, match.margin), times, None, bout.about)


def _units(match: Match, device_type: str) -> list[tuple[Unit, Unit]]:
    """The same shapes for both candidates. Raises UserError, also when the two are for different operators."""
    from atrex.evaluate.budgets import CPU_LIMIT

    suite = load_suite(match.suite)
    limit = CPU_LIMIT if device_type == "cpu" else None
    sides = []
    each = match.dsl if isinstance(match.dsl, tuple) else (match.dsl, match.dsl)
    for path, dsl in zip((match.a, match.b), each, strict=True):
        found = resolve([path], list(suite.problems), match.problem)
        if len(found) != 1:
            raise UserError(f"{path}: expected one candidate file, it holds {len(found)}")
        plan = make_plan(suite, found, match.shapes, dsl, device_type, held_out=False, limit=limit)
        sides.append(plan.units)
    operators = [units[0].problem.operator for units in sides]
    if operators[0] != operators[1]:
        raise UserError(f"{match.a} is for {operators[0]}, {match.b} for {operators[1]}: name one with --problem")
    return list(zip(*sides, strict=True))
