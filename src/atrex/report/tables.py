"""A run in the terminal: units, operators, failures and the suite's figures, one candidate set after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atrex.report import figures
from atrex.report.summary import print_comparison, print_summary
from atrex.scoring.aggregate import Summary
from atrex.scoring.candidates import score_run
from atrex.scoring.failures import MAPPING_NOTE, FailureCount, failures, stage_totals
from atrex.scoring.operators import OperatorScore
from atrex.scoring.readiness import unit_readiness
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.units import published_correct

REASONS_SHOWN = 20
STYLES = {Status.PASSED: "green", Status.FAILED: "red", Status.ERROR: "magenta", Status.SKIPPED: "yellow"}


def make_console(stderr: bool = False) -> Console:
    """A console of the terminal's width, or of 120 columns where the output is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 120, highlight=False)


def print_run(
    records: Sequence[UnitRecord],
    weights: Mapping[str, float],
    denominators: Mapping[str, int],
    console: Console,
    *,
    run: Mapping[str, Any] | None = None,
    units: bool = True,
    notes: Iterable[str] = (),
) -> None:
    """Print every candidate set of a run.

    `weights` and `denominators` as `atrex.scoring.aggregate.summarize` takes them. `run` is the content of run.json: it
    tells which candidates form a set and what was planned. `units` adds the table of units. `notes` are said last.
    Raises ValueError where scoring does.
    """
    scored = score_run(run or {}, records, weights, denominators)
    for label, candidate in scored.items():
        if units:
            print_units(label, candidate.records, list(candidate.operators), console)
    if scored:
        by_label = {label: list(c.operators.values()) for label, c in scored.items()}
        console.print(_operators_table(by_label, _ruled(records)))
    summaries = {label: candidate.summary for label, candidate in scored.items()}
    _print_failures({label: failures(c.records) for label, c in scored.items()}, console)
    if len(summaries) == 1:
        print_summary(next(iter(summaries.values())), console)
    elif summaries:
        print_comparison(summaries, console)
    for line in [*_remarks(summaries), *_uncertainty(records), *notes]:
        console.print(Text(f"note: {line}", style="yellow"))
    if not scored:
        console.print(Text("no unit was recorded"))


def print_units(label: str, records: Sequence[UnitRecord], operators: Sequence[str], console: Console) -> None:
    """Print a row a unit, by the order of `operators`, then what its marks mean and why units did not pass."""
    console.print(_units_table(label, records, operators))
    _print_marks(records, console)
    _print_reasons(records, console)


def new_table(title: str, *columns: str, left: int = 1) -> Table:
    """A table with bold headings, its first `left` columns to the left."""
    table = Table(title=Text(title), title_justify="left", header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if i < left else "right", overflow="fold")
    return table


def _units_table(label: str, records: Sequence[UnitRecord], operators: Sequence[str]) -> Table:
    table = new_table(f"Units: {label}", "operator", "shape", "verdict", "median us", "roofline us", "bound", "S",
                   "attainable", "DSL share", *(["published rule"] if _ruled(records) else []),
                   *(["ready"] if any(r.readiness for r in records) else []), left=3)
    order = {name: i for i, name in enumerate(operators)}
    for r in sorted(records, key=lambda r: (order[r.operator], r.held_out, r.origin != "published", _natural(r.shape))):
        timed, roofline = r.performance, r.roofline
        table.add_row(
            Text(r.operator),
            Text(figures.shape(r)),
            Text(figures.verdict(r.verdict), style=STYLES[r.verdict.status]),
            Text(f"{figures.us(timed.median_us if timed else None)} {figures.marks(r)}".rstrip()),
            figures.us(roofline.roofline_us if roofline else None),
            Text(roofline.bound if roofline else figures.DASH),
            figures.score(roofline.S if roofline else None),
            figures.score(roofline.attainable_S if roofline else None),
            figures.percent(r.adoption.share if r.adoption else None),
            *([figures.passed(published_correct(r))] if _ruled(records) else []),
            *([figures.shown(unit_readiness(r))] if any(r.readiness for r in records) else []),
        )
    return table


def _natural(shape: str) -> tuple[int, str]:
    digits = shape.lstrip("h")
    return (int(digits) if digits.isdecimal() else sys.maxsize, shape)


def _print_marks(records: Sequence[UnitRecord], console: Console) -> None:
    used = "".join(figures.marks(r) for r in records)
    if legend := [f"{letter} {meaning}" for letter, meaning in figures.MARKS.items() if letter in used]:
        console.print(Text("marks: " + ", ".join(legend)))


def _print_reasons(records: Sequence[UnitRecord], console: Console) -> None:
    stopped = [r for r in records if r.verdict.status != Status.PASSED and r.verdict.reason]
    for r in stopped[:REASONS_SHOWN]:
        console.print(Text(f"{r.operator} {figures.shape(r)}: {figures.verdict(r.verdict)}: {r.verdict.reason}"))
    if len(stopped) > REASONS_SHOWN:
        console.print(Text(f"... and {len(stopped) - REASONS_SHOWN} more, in units.jsonl"))


def _ruled(records: Sequence[UnitRecord]) -> bool:
    """Whether any record says how the published rule would have judged."""
    return any(r.correctness is not None and r.correctness.published_check is not None for r in records)


def _operators_table(by_label: Mapping[str, Sequence[OperatorScore]], ruled: bool) -> Table:
    optional = {
        "calibrated": lambda s: s.calibrated,
        "published bound": lambda s: s.published_bound,
        "S_i, all origins": lambda s: s.all_origins,
    }
    every = [s for scores in by_label.values() for s in scores]
    compared = sorted({name for s in every for name in s.ratios})
    shown = {name: value for name, value in optional.items() if any(value(s) is not None for s in every)}
    held_out, several = any(s.held_out for s in every), len(by_label) > 1
    title = "Operators" if several else f"Operators: {next(iter(by_label))}"
    columns = ["operator", "compiled", "correct", *(["published rule"] if ruled else []), "S_i", "strict", "attainable",
               *shown, *(f"vs {name}" for name in compared), "DSL share"]
    columns += ["generalizes", "weight"] if held_out else ["weight"]
    table = new_table(title, *(["candidate"] if several else []), *columns, left=1 + several)
    for label, scores in by_label.items():
        for s in scores:
            table.add_row(
                *([Text(label)] if several else []),
                Text(s.operator),
                f"{s.compiled}/{s.shapes}",
                f"{s.correct}/{s.shapes}",
                *([_by_published_rule(s)] if ruled else []),
                figures.score(None if s.correct and not s.scored else s.s),
                figures.score(s.strict),
                figures.score(s.attainable),
                *(figures.score(value(s)) for value in shown.values()),
                *(figures.compared(s, name) for name in compared),
                figures.percent(s.adoption),
                *([f"{s.generalizes}/{s.held_out}" if s.held_out else figures.DASH] if held_out else []),
                figures.percent(s.weight),
            )
        table.add_section()
    return table


def _by_published_rule(s: OperatorScore) -> str:
    return f"{s.published_correct}/{s.shapes}" + (f" ({s.published_unknown} ?)" if s.published_unknown else "")


def _print_failures(by_label: Mapping[str, Sequence[FailureCount]], console: Console) -> None:
    """The paper's Table 7, a column a candidate set that has failures, and the share of a single set's failures."""
    failing = {label: counts for label, counts in by_label.items() if any(c.count for c in counts)}
    if not failing:
        return
    single = len(failing) == 1
    table = new_table("Failing units", "stage", "category", *failing, *(["share"] if single else []), left=2)
    totals = {label: stage_totals(counts) for label, counts in failing.items()}
    stage = None
    for i, first in enumerate(next(iter(failing.values()))):
        if first.row.stage != stage:
            stage = first.row.stage
            table.add_row(Text(str(stage), style="bold"), "", *(str(t[stage]) for t in totals.values()), style="bold")
        table.add_row("", Text(first.row.title), *(_split(counts[i]) for counts in failing.values()),
                      *([figures.percent(first.share)] if single else []))
    table.add_row("total", "", *(str(sum(t.values())) for t in totals.values()), style="bold")
    console.print(table)
    if any(set(c.by_category) - {c.row.categories[0]} for counts in failing.values() for c in counts):
        console.print(Text(MAPPING_NOTE))


def _split(count: FailureCount) -> str:
    own = [f"{n} {name}" for name, n in count.by_category.items() if name != count.row.categories[0]]
    return f"{count.count} ({', '.join(own)})" if own else str(count.count)


def _uncertainty(records: Sequence[UnitRecord]) -> list[str]:
    known = [r.roofline.uncertainty for r in records if r.roofline and r.roofline.uncertainty]
    return [f"ceilings were measured on this device, uncertain by up to {figures.percent(max(known))}"] if known else []


def _remarks(summaries: Mapping[str, Summary]) -> list[str]:
    several = len(summaries) > 1
    remarks = []
    for label, s in summaries.items():
        where = f"{label}: " if several else ""
        if s.outside:
            remarks.append(f"{where}not in the suite, so in no figure over it: {', '.join(s.outside)}")
        if s.errors:
            found = ", ".join(f"{n} {category}" for category, n in s.errors.items())
            remarks.append(f"{where}evaluation errors, not the candidate's failures: {found}")
        if s.absent:
            remarks.append(f"{where}{s.absent} planned unit(s) without a record: the run is not finished")
    return remarks
