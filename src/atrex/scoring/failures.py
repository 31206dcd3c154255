"""Failure taxonomy: the rows of the Atrex-Bench paper's Table 7 over the failing units of one candidate set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from atrex.scoring.records import CATEGORIES, Stage, Status, UnitRecord
from atrex.scoring.units import headline


@dataclass(frozen=True)
class FailureRow:
    """A row of the table: its published `title` and the categories of ours that are counted in it."""

    stage: Stage
    title: str
    categories: tuple[str, ...]


@dataclass(frozen=True)
class FailureCount:
    """`count` units and their `share` (0..1) of all failing units, split `by_category`."""

    row: FailureRow
    count: int
    share: float | None
    by_category: dict[str, int] = field(default_factory=dict)


# Three categories have no row of their own in the paper. `no_artifact`: its compile stage is "no compiled artifact
# produced", and nothing was. `interface`: wrong names, shape, dtype or layout is not its "right shape and dtype, wrong
# values", so it joins what breaks after a clean compile. `integrity`: what was timed is not what was checked, so the
# values that count are wrong.
ROWS = (
    FailureRow(Stage.COMPILE, "exception before first output", ("exception", "no_artifact")),
    FailureRow(Stage.COMPILE, "compile timeout / OOM-kill", ("timeout_or_oom",)),
    FailureRow(Stage.COMPILE, "Model not nn.Module", ("not_a_module",)),
    FailureRow(Stage.RUNTIME, "numeric mismatch", ("numeric_mismatch", "integrity")),
    FailureRow(Stage.RUNTIME, "runtime timeout", ("timeout",)),
    FailureRow(Stage.RUNTIME, "candidate-raised exception", ("exception", "interface")),
    FailureRow(Stage.PERFORMANCE, "correct-but-slow timeout", ("over_budget",)),
)
MAPPING_NOTE = "counted with: no_artifact an exception, integrity a numeric mismatch, interface a raised exception"


def failures(records: Iterable[UnitRecord]) -> list[FailureCount]:
    """One count a row of `ROWS`, over failed published units; units in `error` are none of them.

    Raises ValueError on a failed unit whose stage and category are not ones of `CATEGORIES`.
    """
    found: Counter[tuple[Stage, str]] = Counter()
    for r in headline(records):
        if r.verdict.status == Status.FAILED:
            stage, category = r.verdict.stage, r.verdict.category
            if stage is None or category not in CATEGORIES[stage]:
                raise ValueError(f"{r.operator} {r.shape}: failed at {stage} {category}, which is no failure category")
            found[stage, category] += 1
    total = found.total()
    counts = []
    for row in ROWS:
        by_category = {c: found[row.stage, c] for c in row.categories if found[row.stage, c]}
        count = sum(by_category.values())
        counts.append(FailureCount(row, count, count / total if total else None, by_category))
    return counts


def exit_code(records: Iterable[UnitRecord]) -> int:
    """1 if a unit ended in `error` (not shown to be the candidate's fault), else 0. Failed units do not raise it."""
    return int(any(r.verdict.status == Status.ERROR for r in records))


def stage_totals(counts: Iterable[FailureCount]) -> dict[Stage, int]:
    """Failing units per stage, every stage named."""
    totals = dict.fromkeys(Stage, 0)
    for c in counts:
        totals[c.row.stage] += c.count
    return totals
