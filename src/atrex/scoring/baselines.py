"""Baselines: their times, taken from runs of their own, beside the units of candidates.

A baseline is measured under the gate's rules but never ranked: its records form no candidate set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atrex.errors import UserError
from atrex.scoring.operators import operator_scores
from atrex.scoring.records import Origin, UnitRecord
from atrex.scoring.runs import Run
from atrex.scoring.units import timed

PRODUCTION = "production"


def published(backend: str | None) -> str:
    """How a record names a published production time."""
    return f"published, {backend}" if backend else "published"


def label(origin: Origin) -> str:
    """How tables name a baseline: `fla (fla-core 0.5.2)`."""
    return f"{origin.name} ({origin.library} {origin.version or 'of unknown version'})"


@dataclass(frozen=True)
class BaselineTimes:
    """What one baseline took on one chip: median microseconds by (operator, shape), correct units only.

    `serving` are the operators that engines compute just so.
    """

    origin: Origin
    chip: str
    run: Run
    us: dict[tuple[str, str], float] = field(default_factory=dict)
    serving: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        return f"{self.origin.library} {self.origin.version or 'of unknown version'}"


def baseline_groups(records: Iterable[UnitRecord]) -> dict[str, list[UnitRecord]]:
    """The records of baselines by `label`, with the chip where there are several; those of candidates are left out."""
    found = [r for r in records if r.baseline is not None]
    several = len({r.chip for r in found}) > 1
    groups: dict[str, list[UnitRecord]] = {}
    for r in found:
        name = label(r.baseline)
        groups.setdefault(f"{name} on {r.chip}" if several else name, []).append(r)
    return groups


@dataclass(frozen=True)
class BaselineRow:
    """One operator of a baseline: `correct` of `shapes` published shapes, their times, and S_i where it is defined."""

    operator: str
    calls: str
    note: str | None
    shapes: int
    correct: int
    median_us: dict[str, float]
    s: float | None
    attainable: float | None


def baseline_rows(records: Sequence[UnitRecord], denominators: Mapping[str, int]) -> list[BaselineRow]:
    """The operators of one baseline, by name. Raises ValueError as `operator_scores` does."""
    rows = []
    for name, score in sorted(operator_scores(records, {}, denominators).items()):
        mine = [r for r in records if r.operator == name]
        times = {r.shape: r.performance.median_us for r in mine if timed(r)}
        origin = mine[0].baseline
        rows.append(BaselineRow(
            name, origin.calls, origin.note, score.shapes, score.correct, times, score.s_defined, score.attainable
        ))  # fmt: skip
    return rows


def baseline_times(run: Run) -> list[BaselineTimes]:
    """The times of a run's baselines. Raises UserError for a run that has none."""
    groups = baseline_groups(run.records)
    if not groups:
        raise UserError(f"{run.path}: no record of a baseline in it; expected a run of `atrex baseline`")
    return [
        BaselineTimes(
            group[0].baseline, group[0].chip, run,
            {(r.operator, r.shape): r.performance.median_us for r in group if timed(r)},
            frozenset(r.operator for r in group if r.baseline.production),
        )
        for group in groups.values()
    ]  # fmt: skip


def joined(run: Run, baselines: Sequence[BaselineTimes]) -> Run:
    """The run with each candidate's record naming the baselines' times on its chip, and notes on what was joined.

    The "production" time is the published one where the chip has one. Elsewhere it is that of the first of `baselines`
    that engines serve models with and that has the operator. A record keeps what it has already.
    """
    here = {r.chip for r in run.records if r.baseline is None}
    matching = [b for b in baselines if b.chip in here]
    notes = [
        f"{b.run.path}: {b.origin.name} was measured on {b.chip}, which no unit of {run.path} is of: not compared"
        for b in baselines if here and b.chip not in here
    ]  # fmt: skip
    for b in matching:
        notes += _differences(run, b)
    serving = _serving(matching)
    records = [r if r.baseline is not None else _with_times(r, matching, serving) for r in run.records]
    return replace(run, records=records, notes=[*run.notes, *notes])


def check_names(baselines: Sequence[BaselineTimes]) -> None:
    """Raise UserError if two runs hold the same baseline of the same chip: a ratio could be to either."""
    seen: dict[tuple[str, str], BaselineTimes] = {}
    for b in baselines:
        other = seen.setdefault((b.origin.name, b.chip), b)
        if other is not b:
            raise UserError(
                f"{b.run.path}: baseline {b.origin.name} on {b.chip} is in {other.run.path} too; give one of them"
            )


def _serving(baselines: Sequence[BaselineTimes]) -> dict[tuple[str, str], BaselineTimes]:
    """(chip, operator) -> the baseline that stands for production there."""
    found: dict[tuple[str, str], BaselineTimes] = {}
    for b in baselines:
        for operator in {operator for operator, _ in b.us} & b.serving:
            found.setdefault((b.chip, operator), b)
    return found


def _with_times(
    record: UnitRecord, baselines: Sequence[BaselineTimes], serving: Mapping[tuple[str, str], BaselineTimes]
) -> UnitRecord:
    unit = record.operator, record.shape
    times = {b.origin.name: b.us[unit] for b in baselines if b.chip == record.chip and unit in b.us}
    changed = {}
    stand_in = serving.get((record.chip, record.operator))
    if PRODUCTION not in (record.baselines or {}) and stand_in is not None and unit in stand_in.us:
        times[PRODUCTION], changed["production"] = stand_in.us[unit], stand_in.source
    if times:
        changed["baselines"] = times | (record.baselines or {})
    return record.model_copy(update=changed) if changed else record


def _differences(run: Run, baseline: BaselineTimes) -> list[str]:
    """What speaks against comparing times of the two runs although the chip is the same."""
    names = {"suite_hash": "suite", "device_name": "device"}
    return [
        f"{baseline.origin.name} was measured with another {name} ({baseline.run.run[key]}) than this run "
        f"({run.run[key]})"
        for key, name in names.items()
        if run.run.get(key) and baseline.run.run.get(key) and run.run[key] != baseline.run.run[key]
    ]
