"""What `atrex suite validate --mutants` found: the kill table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from atrex.cli.suite import not_run_lines
from atrex.problems.compiled import COMPILED, compiled_shapes
from atrex.problems.mutants import KillTable, Row, ShapeOutcomes, check_mutants, explained
from atrex.problems.shape_ids import expanded, id_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atrex.problems.model import Problem, Shape

NAMED = 5


class KillBook:
    """The kill table of every operator; a shape that could not be run is a failure of that shape."""

    smallest_first = True  # a mutant that dies on small shapes dies on large ones, which take most of the time

    def __init__(self, compiled: bool) -> None:
        self.compile = compiled
        self.tables: dict[str, KillTable] = {}
        self.survivors: dict[str, Mapping[str, str]] = {}
        self.seconds: dict[str, dict[str, float]] = {}
        self.compiled: set[tuple[str, str]] = set()

    @property
    def check(self) -> Any:
        return partial(check_mutants, compiled=frozenset(self.compiled))

    def begin(self, problem: Problem, shapes: list[Shape]) -> None:
        """`shapes` are those that will run: of them, smallest and largest are compiled."""
        operator = problem.operator
        self.survivors[operator] = explained(problem)
        table = self.tables.setdefault(operator, KillTable(operator))
        table.not_run.clear()
        self.seconds.setdefault(operator, {})
        if self.compile:
            self.compiled |= {(operator, shape_id) for shape_id in compiled_shapes(problem, shapes)}

    def has(self, operator: str, shape_id: str) -> bool:
        return shape_id in self.seconds.get(operator, {})

    def add(self, operator: str, shape_id: str, result: Any) -> None:
        if not isinstance(result, ShapeOutcomes):
            result = ShapeOutcomes([], error=result.reason)
        self.tables[operator].add(shape_id, result, self.survivors[operator])
        self.seconds[operator][shape_id] = float(f"{result.seconds:.4g}")

    def leave_out(self, operator: str, shape_id: str, reason: str) -> None:
        self.tables[operator].not_run[shape_id] = reason

    def again(self, result: ShapeOutcomes) -> bool:
        return result.starved

    def load(self, document: dict[str, Any]) -> None:
        for each in document["operators"]:
            self.tables[each["operator"]] = _table(each)
            self.seconds[each["operator"]] = each["seconds"]

    def operators(self) -> list[dict[str, Any]]:
        return [{**_document(table), "seconds": self.seconds[name]} for name, table in self.tables.items()]

    def summary(self) -> dict[str, Any]:
        rows = [row for table in self.tables.values() for row in table.rows]
        wrong, right = ([row for row in rows if row.wrong is kind] for kind in (True, False))
        seconds = [(s, name, sid) for name, by in self.seconds.items() for sid, s in by.items()]
        return {
            "operators": len(self.tables),
            "units": len(seconds),
            "not_run": sum(len(table.not_run) for table in self.tables.values()),
            "failed": sum(len(table.failed) for table in self.tables.values()),
            "wrong": len(wrong),
            "killed_everywhere": sum(not _survived(row) for row in wrong),
            "survive_with_a_reason": sum(bool(_survived(row)) and row.sound for row in wrong),
            "survive": sum(not row.sound for row in wrong),
            "right": len(right),
            "passed_everywhere": sum(row.sound for row in right),
            "compiled": sum(len(row.seen) for row in right if row.name == COMPILED),
            "did_not_compile": sum(len(row.not_run) for row in right if row.name == COMPILED),
            "slowest": [
                {"operator": name, "shape": sid, "seconds": s} for s, name, sid in sorted(seconds, reverse=True)[:NAMED]
            ],
        }

    def show(self) -> None:
        for table in self.tables.values():
            if table.rows or table.failed:
                _print(table)
            else:
                print("\n".join(f"{table.operator}: {line}" for line in not_run_lines(table.not_run)))
        told = self.summary()
        print(
            f"{told['units']} units run, {told['not_run']} not run, {told['failed']} failed; "
            f"{told['wrong']} wrong ones: {told['killed_everywhere']} killed, "
            f"{told['survive_with_a_reason']} survive with a reason, {told['survive']} survive; "
            f"{told['passed_everywhere']} of {told['right']} right ones passed"
        )

        if told["compiled"] or told["did_not_compile"]:
            print(f"{COMPILED}: {told['compiled']} shapes compiled, {told['did_not_compile']} did not")

    def failed(self) -> bool:
        return any(table.unsound or table.failed for table in self.tables.values())


def _survived(row: Row) -> list[str]:
    return [shape for shape, case in row.seen.items() if case is None]


def _print(table: KillTable) -> None:
    from rich.table import Table
    from rich.text import Text

    from atrex.report.tables import make_console

    wrong = [row for row in table.rows if row.wrong]
    right = [row for row in table.rows if not row.wrong]
    killed = sum(not _survived(row) for row in wrong)
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
        text = Text(_outcome(row), style="" if row.sound else "red")
        grid.add_row(Text(row.name), "wrong" if row.wrong else "right", text)
    console = make_console()
    console.print(grid)
    for shape_id, error in table.failed.items():
        console.print(Text(f"FAILED shape {shape_id}: {error}", style="red"))
    for line in not_run_lines(table.not_run):
        console.print(Text(line))


def _outcome(row: Row) -> str:
    failed = [shape for shape, case in row.seen.items() if case is not None]
    survived = _survived(row)
    parts = []
    if not row.wrong and row.seen:
        parts.append("passed" if not failed else f"FAILED on shapes {', '.join(failed)}")
    elif survived:
        reason = f" ({row.reason})" if row.reason else ""
        parts.append(f"SURVIVED on shapes {id_ranges(survived)}{reason}")
    elif row.seen:
        cases = sorted({case for case in row.seen.values() if case}, key=lambda case: (case != "seed", case))
        parts.append(f"killed by {', '.join(cases)}")
    parts += [f"shapes {ids}: {reason}" for reason, ids in _by_value(row.not_run).items()]
    return "; ".join(parts)


def _by_value(by_shape: Mapping[str, str]) -> dict[str, str]:
    """{shape id: text} as {text: ids}."""
    found: dict[str, list[str]] = {}
    for shape_id, text in sorted(by_shape.items(), key=lambda item: (len(item[0]), item[0])):
        found.setdefault(text, []).append(shape_id)
    return {text: id_ranges(ids) for text, ids in found.items()}


def _document(table: KillTable) -> dict[str, Any]:
    """Small enough for a suite in one file: shape ids as ranges, by the case that told a mutant apart."""
    return {
        "operator": table.operator,
        "sound": not table.unsound and not table.failed,
        "wrong": sum(row.wrong for row in table.rows),
        "right": sum(not row.wrong for row in table.rows),
        "mutants": [
            {
                "name": row.name,
                "wrong": row.wrong,
                "sound": row.sound,
                "failed_by": _by_value({s: case for s, case in row.seen.items() if case is not None}),
                "passed": id_ranges(sorted(_survived(row), key=lambda sid: (len(sid), sid))),
                **({"reason": row.reason} if row.reason else {}),
                **({"not_run": _by_value(row.not_run)} if row.not_run else {}),
            }
            for row in table.rows
        ],
        "failed": table.failed,
        "not_run": _by_value(table.not_run),
    }


def _table(document: Mapping[str, Any]) -> KillTable:
    """The table that `_document` describes."""
    rows = []
    for each in document["mutants"]:
        seen: dict[str, str | None] = dict.fromkeys(expanded(each["passed"]))
        seen |= {sid: case for case, ids in each["failed_by"].items() for sid in expanded(ids)}
        unrun = {sid: why for why, ids in each.get("not_run", {}).items() for sid in expanded(ids)}
        rows.append(Row(each["name"], each["wrong"], seen, each.get("reason"), unrun))
    not_run = {sid: why for why, ids in document["not_run"].items() for sid in expanded(ids)}
    return KillTable(document["operator"], rows, not_run, dict(document["failed"]))
