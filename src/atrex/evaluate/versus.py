"""Measuring two candidates against each other: the same gates, fresh processes, orders and inputs drawn anew."""

from __future__ import annotations

import random
from collections.abc import Callable
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
    dsl: str | None = None
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


def versus(match: Match, progress: Progress = lambda done, planned: None, zygote: Zygote | None = None) -> Result:
    """Judge A and B in turn, round after round: new seeds a round, every measurement in a fresh worker.

    Each measurement is a whole judged unit with one seed, spot checks and the judge's own clock, so that a kernel
    cannot win by being wrong. Raises UserError for bad input.
    """
    if match.rounds < MIN_ROUNDS:
        raise UserError(f"--rounds {match.rounds}: expected at least {MIN_ROUNDS}")
    device = resolve_device(match.device)
    pairs = _units(match, device.type)
    operator = pairs[0][0].problem.operator
    hidden = [str(Path(path).resolve()) for path in (match.a, match.b, match.suite) if path]
    setup = prepare(str(device), Seeds(), 1, match.budgets, None, zygote, hidden)
    about = {
        "a": match.a, "b": match.b, "operator": operator, "rounds": match.rounds, "device": device_name(device),
        "versions": versions(), "confidence": match.confidence, "margin": match.margin,
    }  # fmt: skip
    rng = random.SystemRandom()
    times: dict[str, list[Pair]] = {a.shape.id: [] for a, _ in pairs}
    done, planned = 0, 2 * match.rounds * len(pairs)
    try:
        for _ in range(match.rounds):
            setup.seeds = Seeds()
            for pair in rng.sample(pairs, len(pairs)):
                found: dict[str, float] = {}
                for side in rng.sample(("a", "b"), 2):
                    record = UnitJudge(setup, pair["ab".index(side)]).run()
                    if record.verdict.status is not Status.PASSED:
                        return Result(operator, None, times, record, about)
                    found[side] = record.performance.median_us
                    done += 1
                    progress(done, planned)
                times[pair[0].shape.id].append((found["a"], found["b"]))
    finally:
        setup.close()
    return Result(operator, compare_times(times, match.confidence, match.margin), times, None, about)


def _units(match: Match, device_type: str) -> list[tuple[Unit, Unit]]:
    """The same shapes for both candidates. Raises UserError, also when the two are for different operators."""
    from atrex.evaluate.budgets import CPU_LIMIT

    suite = load_suite(match.suite)
    limit = CPU_LIMIT if device_type == "cpu" else None
    sides = []
    for path in (match.a, match.b):
        found = resolve([path], list(suite.problems), match.problem)
        if len(found) != 1:
            raise UserError(f"{path}: expected one candidate file, it holds {len(found)}")
        plan = make_plan(suite, found, match.shapes, match.dsl, device_type, held_out=False, limit=limit)
        sides.append(plan.units)
    operators = [units[0].problem.operator for units in sides]
    if operators[0] != operators[1]:
        raise UserError(f"{match.a} is for {operators[0]}, {match.b} for {operators[1]}: name one with --problem")
    return list(zip(*sides, strict=True))
