"""`atrex suite validate --mutants`: the kill table."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from atrex.problems.lint import Budget
    from atrex.problems.model import Problem, Shape
    from atrex.problems.mutants import KillTable


def print_kill_tables(
    chosen: list[tuple[Problem, list[Shape]]], device: str, budget: Budget, seed: int, as_json: bool
) -> None:
    """Run and print the mutants of each problem. Exits with 1 when a wrong one survives or a right one fails."""
    from atrex.problems.mutants import kill_table

    tables = []
    for problem, shapes in chosen:

        def progress(shape_id: str, operator: str = problem.operator) -> None:
            print(f"{operator} {shape_id}", file=sys.stderr, flush=True)

        tables.append(kill_table(problem, shapes, device, budget, seed, progress))
        if not as_json:
            _print(tables[-1])
    if as_json:
        print(json.dumps([_document(table) for table in tables], indent=2))
    if any(table.unsound for table in tables):
        raise typer.Exit(1)


def _print(table: KillTable) -> None:
    from rich.table import Table
    from rich.text import Text

    from atrex.report.tables import make_console

    wrong = [row for row in table.rows if row.wrong]
    right = [row for row in table.rows if not row.wrong]
    killed = sum(all(case is not None for case in row.seen.values()) for row in wrong)
    passed = sum(row.sound for row in right)
    shapes = max((len(row.seen) for row in table.rows), default=0)
    grid = Table(
        title=Text(
            f"{table.operator}: {killed} of {len(wrong)} wrong ones killed on every shape, "
            f"{passed} of {len(right)} right ones passed, {shapes} shapes"
        ),
        title_justify="left",
        header_style="bold",
    )
    for column in ("mutant", "is", "outcome"):
        grid.add_column(column, overflow="fold")
    for row in table.rows:
        outcome = _outcome(row.wrong, row.seen)
        if row.wrong and row.reason and any(case is None for case in row.seen.values()):
            outcome += f" ({row.reason})"
        grid.add_row(Text(row.name), "wrong" if row.wrong else "right", Text(outcome, style="" if row.sound else "red"))
    console = make_console()
    console.print(grid)
    if table.not_run:
        console.print(Text(f"not run, too large for this device: shapes {', '.join(table.not_run)}"))


def _outcome(wrong: bool, seen: dict[str, str | None]) -> str:
    failed = [shape for shape, case in seen.items() if case is not None]
    if not wrong:
        return "passed" if not failed else f"FAILED on shapes {', '.join(failed)}"
    survived = [shape for shape in seen if shape not in failed]
    if survived:
        return f"SURVIVED on shapes {', '.join(survived)}"
    cases = sorted({case for case in seen.values() if case is not None}, key=lambda case: (case != "seed", case))
    return f"killed by {', '.join(cases)}"


def _document(table: KillTable) -> dict[str, Any]:
    return {
        "operator": table.operator,
        "sound": not table.unsound,
        "not_run": table.not_run,
        "mutants": [
            {"name": row.name, "wrong": row.wrong, "sound": row.sound, "reason": row.reason, "seen": row.seen}
            for row in table.rows
        ],
    }
