"""`atrex compare`: is B faster than A, and by how much."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from atrex.evaluate.versus import Result


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A candidate file: what is compared with.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A candidate file: the one that may be faster.")],
    problem: Annotated[str | None, typer.Option(help="Operator; default: what the files are named after.")] = None,
    shapes: Annotated[str | None, typer.Option(help='Ids, such as "0,3-5", or "published"; default: all.')] = None,
    dsl: Annotated[str | None, typer.Option(help="Target DSL; default: what each file's imports say.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N; default: cuda:0 where there is one.")] = None,
    rounds: Annotated[int, typer.Option(help="Measurements of each shape and candidate, each in a fresh process.")] = 6,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of the intervals.")] = 0.95,
    margin: Annotated[float, typer.Option(min=0.0, help="How much faster counts: 0.02 is 2 %.")] = 0.0,
    suite: Annotated[Path | None, typer.Option(help="A suite or problem folder; default: the shipped suite.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the times and figures to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure two candidates against each other: an interval per shape and overall, and a decision.

    Exit status: 0 when both were measured (whichever is faster), 1 when a unit of one of them did not pass, 2 for bad
    input.
    """
    from atrex.evaluate.spawn import Zygote

    zygote = Zygote()
    try:
        from atrex.evaluate.versus import Match, versus
        from atrex.hardware.detect import default_device

        match = Match(
            a=a, b=b, problem=problem, shapes=shapes, dsl=dsl, device=device or default_device(), rounds=rounds,
            confidence=confidence, margin=margin, suite=suite,
        )  # fmt: skip
        result = versus(match, _progress, zygote)
    finally:
        zygote.close()
    document = _document(result)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        _print(result)
    if result.comparison is None:
        raise typer.Exit(1)


def _progress(done: int, planned: int) -> None:
    print(f"[{done}/{planned}]", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def _document(result: Result) -> dict:
    from dataclasses import asdict

    return result.about | {
        "times_us": result.times,
        "comparison": asdict(result.comparison) if result.comparison else None,
        "stopped": result.stopped.model_dump(mode="json") if result.stopped else None,
    }


def _print(result: Result) -> None:
    from rich.table import Table
    from rich.text import Text

    from atrex.report import figures
    from atrex.report.tables import make_console

    console = make_console()
    if result.comparison is None:
        record = result.stopped
        console.print(
            Text(f"not compared: {record.candidate}, {record.operator} {record.shape}: "
                 f"{figures.verdict(record.verdict)}: {record.verdict.reason}", style="red")
        )  # fmt: skip
        return
    found = result.comparison
    percent = f"{100 * found.attained:.3g} %"
    title = f"{result.operator}: T_A / T_B, {found.rounds} rounds, {percent} intervals"
    grid = Table(title=Text(title), title_justify="left", header_style="bold")
    for column in ("shape", "A us", "B us", "ratio", "from", "to"):
        grid.add_column(column, justify="left" if column == "shape" else "right")
    for row in found.shapes:
        grid.add_row(row.shape, figures.us(row.a_us), figures.us(row.b_us), *_interval(row.interval))
    grid.add_section()
    grid.add_row("overall", "", "", *_interval(found.overall))
    console.print(grid)
    console.print(Text(_sentence(result)))


def _interval(interval) -> tuple[str, str, str]:
    return tuple(f"{value:.3f}" for value in (interval.ratio, interval.low, interval.high))


def _sentence(result: Result) -> str:
    found, margin = result.comparison, result.about["margin"]
    by = f" by more than {100 * margin:g} %" if margin else ""
    alpha, p = 1 - found.confidence, min(1.0, 2 * min(found.p_faster, found.p_slower))  # either could be the faster one
    if p > alpha:
        few = found.attained < found.confidence
        return f"no difference{by} is shown (p = {p:.2g})" + (f"; {found.rounds} rounds are too few for one" * few)
    return f"B is {'faster' if found.p_faster < found.p_slower else 'slower'} than A{by} (p = {p:.2g})"
