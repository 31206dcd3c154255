"""A whole study: every table of every group of comparable sets, as one document, as files, and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from atrex.report.study.breakdown import breakdown, by_set
from atrex.report.study.comparable import conditions, coverage_notes, differences, groups
from atrex.report.study.difficulty import difficulty, per_operator, regimes
from atrex.report.study.facts import suite_facts
from atrex.report.study.main_table import illusion, main_table
from atrex.report.study.overview import overview
from atrex.report.study.pair import pair_table, read_pair
from atrex.report.study.samples import interval_table, pass_table
from atrex.report.study.sets import CandidateSet, Found
from atrex.report.study.table import Table, as_csv
from atrex.report.study.tokens import tokens
from atrex.report.tables import new_table

SCHEMA = 1
REPORT = "report.json"


@dataclass(frozen=True)
class Group:
    """Sets that may be compared, and their tables."""

    sets: list[CandidateSet]
    tables: list[Table]
    notes: list[str]


@dataclass(frozen=True)
class Study:
    """`differences` says why groups are not one; `pair_sets` are the two of the optimizer's table."""

    groups: list[Group] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pair: Table | None = None
    pair_sets: tuple[CandidateSet, CandidateSet] | None = None

    @property
    def errors(self) -> int:
        """Units in error, whose sets' figures are not sound."""
        return sum(sum(s.summary.errors.values()) for group in self.groups for s in group.sets)

    @property
    def exit_code(self) -> int:
        return int(bool(self.differences or self.errors))


def study(found: Found, suite: Path | None = None) -> Study:
    """All tables of the sets that were found. Raises UserError for a `suite` given that cannot be read."""
    grouped = groups(found.sets)
    made = []
    for sets in grouped:
        facts = suite_facts(sets, suite)
        tables = [
            main_table(sets), overview(sets), illusion(sets), difficulty(sets, facts), per_operator(sets),
            regimes(sets, facts), tokens(sets), breakdown(sets), by_set(sets), pass_table(sets), interval_table(sets),
        ]  # fmt: skip
        weights = sets[0].weights
        notes = [f"weights: {weights.source}", *weights.notes, *coverage_notes(sets)]
        made.append(Group(sets, tables, list(dict.fromkeys(notes))))
    return Study(made, differences(grouped), list(dict.fromkeys(found.notes)))


def pair_study(
    vanilla: Path, optimized: Path, baselines: Sequence[Path], weights: Path | None, beside: Study | None = None
) -> Study:
    """The optimizer's table, alone or `beside` a study. Raises UserError as `read_pair` does."""
    a, b, notes = read_pair(vanilla, optimized, baselines, weights)
    made = beside or Study()
    return replace(made, pair=pair_table(a, b), pair_sets=(a, b), notes=list(dict.fromkeys([*made.notes, *notes])))


def document(made: Study) -> dict[str, Any]:
    """The study as one JSON document. Rates and S are 0..1, times microseconds, what is not known is null.

    {"schema": 1, "exit_code", "differences": [line], "notes": [line],
     "groups": [{"group": n from 1, "sets": [name], "runs": [path], "conditions": {what the sets agree in},
       "notes": [line], "tables": {name: {"title", "rows": [{column: value}], "notes": [line]}}}],
     "pair": {"title", "rows", "notes"} or null}
    """
    return {
        "schema": SCHEMA,
        "exit_code": made.exit_code,
        "differences": made.differences,
        "notes": made.notes,
        "groups": [
            {
                "group": i,
                "sets": [s.name for s in group.sets],
                "runs": list(dict.fromkeys(str(s.run.path) for s in group.sets)),
                "conditions": conditions(group.sets[0]),
                "notes": group.notes,
                "tables": {t.name: _table(t) for t in group.tables},
            }
            for i, group in enumerate(made.groups, 1)
        ],
        "pair": _table(made.pair) if made.pair else None,
    }


def _table(table: Table) -> dict[str, Any]:
    return {"title": table.title, "rows": table.data, "notes": list(table.notes)}


def data_files(made: Study) -> dict[str, str]:
    """`report.json` and a CSV a table, by name. Rows of all groups stand in one file, told apart by `group`."""
    files = {REPORT: json.dumps(document(made), indent=1, allow_nan=False) + "\n"}
    by_name: dict[str, list[tuple[int, Table]]] = {}
    for i, group in enumerate(made.groups, 1):
        for table in group.tables:
            by_name.setdefault(table.name, []).append((i, table))
    for name, tables in by_name.items():
        keys = dict.fromkeys(key for _, table in tables for key in table.keys)
        rows = [{"group": i, **row} for i, table in tables for row in table.data]
        files[f"{name}.csv"] = as_csv(["group", *keys], rows)
    if made.pair:
        files["pair.csv"] = as_csv(made.pair.keys, made.pair.data)
    return files


def print_study(made: Study, console: Console) -> None:
    """Print every table that has rows, group by group."""
    for i, group in enumerate(made.groups, 1):
        if len(made.groups) > 1:
            console.print(Text(f"Group {i}: {', '.join(s.name for s in group.sets)}", style="bold"))
        for table in group.tables:
            if table.rows and table.shown:
                _print(table, console)
        for line in group.notes:
            console.print(Text(f"note: {line}", style="yellow"))
    if made.pair:
        _print(made.pair, console)
    for line in made.notes:
        console.print(Text(f"note: {line}", style="yellow"))
    if made.errors:
        one = made.errors == 1
        console.print(Text(
            f"note: {made.errors} unit{'' if one else 's'} ended in an evaluation error: figures are not sound",
            style="yellow",
        ))  # fmt: skip
    for line in made.differences:
        console.print(Text(f"not compared: {line}", style="red"))


def _print(table: Table, console: Console) -> None:
    columns = [c for c in table.columns if c.shown]
    shown = new_table(table.title, *(c.title for c in columns), left=table.left)
    for row in table.rows:
        shown.add_row(*(Text(c.format(row[c.key])) for c in columns))
    console.print(shown)
    for line in table.notes:
        console.print(Text(line))
