"""One system without and with the optimizer (the paper's Table 8): unit by unit and operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from atrex.errors import UserError
from atrex.report import figures
from atrex.report.study.comparable import differ
from atrex.report.study.sets import CandidateSet, find_sets
from atrex.report.study.table import Column, Format, Row, Table
from atrex.scoring.operators import OperatorScore, operator_scores
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.units import headline, timed

JUDGED = ("suite_hash", "dsl", "chip", "cpu")
"""What a pair must share. An optimizer has other prompts and tools by its nature."""


def read_pair(
    vanilla: Path, optimized: Path, baselines: Sequence[Path], weights: Path | None
) -> tuple[CandidateSet, CandidateSet, list[str]]:
    """The two sets and notes. Raises UserError where a path holds not exactly one set, or the sets are no pair."""
    found = [find_sets([path], baselines, weights) for path in (vanilla, optimized)]
    for path, each in zip((vanilla, optimized), found, strict=True):
        if len(each.sets) != 1:
            names = ", ".join(s.name for s in each.sets)
            raise UserError(f"--pair: {path} holds {len(each.sets)} candidate sets ({names}), expected a run of one")
    a, b = found[0].sets[0], found[1].sets[0]
    if wrong := differ(a, b, JUDGED):
        raise UserError(f"--pair: {vanilla} and {optimized} cannot be compared: {'; '.join(wrong)}")
    models = [s.generation.about.model for s in (a, b) if s.generation]
    if len(models) == 2 and models[0] != models[1]:
        raise UserError(f"--pair: {vanilla} is of model {models[0]}, {optimized} of {models[1]}; expected the same")
    if not set(_units(a)) & set(_units(b)):
        raise UserError(f"--pair: {vanilla} and {optimized} have no unit in common")
    notes = [f"{optimized}: {line}" for line in found[1].notes] + [f"{vanilla}: {line}" for line in found[0].notes]
    return a, b, notes


def pair_table(vanilla: CandidateSet, optimized: CandidateSet) -> Table:
    """Rows a unit that both were judged on, and under several shapes a row for their operator (`shape` None) first.

    Every figure stands twice, `vanilla_` and `aka_`: `verdict`, DSL `share`, `s`, `us`, and the ratio to each baseline
    (over 1 is faster). `speedup` is T_vanilla / T_AKA, for an operator the median over its shapes.
    """
    a, b = _units(vanilla), _units(optimized)
    common = [key for key in a if key in b]
    names = sorted({name for units in (a, b) for key in common for name in units[key].baselines or {}})
    rows: list[Row] = []
    for operator in dict.fromkeys(op for op, _ in common):
        shapes = [shape for op, shape in common if op == operator]
        mine = [[units[operator, shape] for shape in shapes] for units in (a, b)]
        if len(shapes) > 1:
            rows.append(_row(operator, None, mine[0], mine[1], names))
        rows += [_row(operator, shape, [x], [y], names) for shape, x, y in zip(shapes, *mine, strict=True)]
    shown: dict[str, tuple[str, Format]] = {
        "correct": ("correct", str),
        "share": ("DSL share", figures.percent),
        "s": ("S", figures.score),
        **{f"vs_{name}": (f"vs {name}", figures.ratio) for name in names},
    }
    for row in rows:
        for key, (_, format) in shown.items():
            row[f"both_{key}"] = f"{format(row[f'vanilla_{key}'])} -> {format(row[f'aka_{key}'])}"
    columns = [
        Column("operator", "operator"),
        Column("shape", "shape", lambda v: "all" if v is None else str(v)),
        *(column for key in (*shown, "us") for column in _data(key)),
        *(_arrow(key, title) for key, (title, _) in shown.items()),
        Column("speedup", "speedup", figures.ratio),
    ]
    left = len(set(a) ^ set(b))
    doubtful = sum(units[key].verdict.status == Status.ERROR for units in (a, b) for key in common)
    notes = [f"vanilla is {vanilla.name} of {vanilla.run.path}, AKA {optimized.name} of {optimized.run.path}"]
    notes += [f"{left} unit{'s' * (left > 1)} judged in one of the two alone, in no row"] if left else []
    notes += [f"{doubtful} of these units ended in an evaluation error: no S, no ratio"] if doubtful else []
    return Table("pair", "Vanilla -> AKA", columns, rows, notes, left=2)


def _units(s: CandidateSet) -> Mapping[tuple[str, str], UnitRecord]:
    return {(r.operator, r.shape): r for r in headline(s.records)}


def _data(key: str) -> list[Column]:
    return [Column(f"{side}_{key}", key, shown=False) for side in ("vanilla", "aka")]


def _arrow(key: str, title: str) -> Column:
    """Both sides in one cell, for the terminal."""
    return Column(f"both_{key}", title, data=False)


def _row(
    operator: str, shape: str | None, a: Sequence[UnitRecord], b: Sequence[UnitRecord], names: Sequence[str]
) -> Row:
    row: Row = {"operator": operator, "shape": shape}
    for prefix, records in (("vanilla", a), ("aka", b)):
        score = operator_scores(records, {}, {})[operator]
        row |= {f"{prefix}_{key}": value for key, value in _figures(score, records, names).items()}
    row["speedup"] = _speedup(a, b, operator)
    return row


def _figures(score: OperatorScore, records: Sequence[UnitRecord], names: Sequence[str]) -> Row:
    # A time of several shapes would mean nothing: only a unit has one.
    time = records[0].performance.median_us if len(records) == 1 and timed(records[0]) else None
    return {
        "correct": f"{score.correct}/{score.shapes}",
        "share": score.adoption,
        "s": score.s_defined if score.correct else 0.0,
        "us": time,
        **{f"vs_{name}": score.ratios.get(name) for name in names},
    }


def _speedup(a: Sequence[UnitRecord], b: Sequence[UnitRecord], operator: str) -> float | None:
    """T_vanilla / T_AKA: vanilla's times as one more baseline of the other's units."""
    before = {r.shape: r.performance.median_us for r in a if timed(r)}
    name = "vanilla"
    after = [r.model_copy(update={"baselines": {name: before[r.shape]} if r.shape in before else {}}) for r in b]
    return operator_scores(after, {}, {})[operator].ratios.get(name)
