"""A baseline's run in the terminal: its units and its operators, and no figure that could rank it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.text import Text

from atrex.report import figures
from atrex.report.tables import new_table, print_units
from atrex.scoring.baselines import BaselineRow, baseline_groups, baseline_rows
from atrex.scoring.records import UnitRecord


def print_baselines(
    records: Sequence[UnitRecord],
    denominators: Mapping[str, int],
    console: Console,
    *,
    units: bool,
    notes: Iterable[str] = (),
) -> bool:
    """Print the baselines of a run. Returns whether all its records are of baselines, so that nothing is left to print.

    `denominators`, `units` and `notes` as `atrex.report.tables.print_run` takes them.
    """
    groups = baseline_groups(records)
    for label, group in groups.items():
        rows = baseline_rows(group, denominators)
        if units:
            print_units(f"baseline {label}", group, [row.operator for row in rows], console)
        columns = ("operator", "calls", "correct", "median us", "S_i", "attainable")
        shown = new_table(f"Baseline: {label}", *columns, left=2)
        for row in rows:
            shown.add_row(
                Text(row.operator), Text(row.calls), f"{row.correct}/{row.shapes}", _span(row),
                figures.score(row.s), figures.score(row.attainable),
            )  # fmt: skip
        console.print(shown)
        console.print(Text("a baseline is compared with and never ranked: it has no weight and no S_agg"))
    alone = bool(groups) and all(r.baseline is not None for r in records)
    for line in notes if alone else ():
        console.print(Text(f"note: {line}", style="yellow"))
    return alone


def _span(row: BaselineRow) -> str:
    """The median of the shapes' times, with how many there are when not every shape has one."""
    times = list(row.median_us.values())
    return f"{figures.us(median(times))} ({len(times)} shapes)" if times else figures.DASH
