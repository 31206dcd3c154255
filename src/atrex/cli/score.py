"""`atrex score`: the figures of finished runs, under the published weights or one's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atrex.errors import UserError

# Everything else is imported where it is used, so that `atrex --help` does not wait for pydantic and rich's tables.
if TYPE_CHECKING:
    from atrex.scoring.runs import Run


def score(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories written by `atrex eval`.")],
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="JSON object {operator: weight} to score under.")
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option("--baseline", metavar="BASERUN", help="A run of `atrex baseline` to compare with; repeatable."),
    ] = None,
    units: Annotated[bool, typer.Option("--units", help="Show every unit too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score finished runs: per operator, per failure category and over the suite.

    --baseline adds how many times as fast as a baseline the candidates are: T_baseline / T_candidate, the median over
    operators of the operator's median over its correct shapes. Where the chip has no published production time, the
    first of the baselines that engines serve models with takes that column, named. Baselines themselves get no score.

    Exits with 1 if a unit ended in an evaluation error, for then the figures are not sound.
    """
    from atrex.scoring.baselines import baseline_times, check_names, joined
    from atrex.scoring.runs import load_run

    loaded = [load_run(path) for path in runs]
    if baseline:
        found = [times for path in baseline for times in baseline_times(load_run(path))]
        check_names(found)
        loaded = [joined(run, found) for run in loaded]
    code = print_scores(loaded, weights, units=units, as_json=as_json)
    if code:
        raise typer.Exit(code)


def print_outcome(outcome, seconds: float, as_json: bool) -> None:
    """Print what an evaluation of `seconds` found, every unit included.

    `outcome` is an `atrex.evaluate.run.Outcome`: `records`, `about` (the content of run.json) and `path` or None.
    """
    from atrex.scoring.runs import Run

    print_scores([Run(outcome.path, outcome.about, outcome.records)], None, units=True, as_json=as_json)
    n = len(outcome.records)
    kept = f"; records in {outcome.path}" if outcome.path else ""
    # On stderr, so that --json leaves one document on stdout.
    print(f"{n} unit{'s' * (n != 1)} in {seconds:.1f} s{kept}", file=sys.stderr)


def print_scores(runs: Sequence[Run], weights: Path | None, *, units: bool, as_json: bool) -> int:
    """Print runs as tables or as one JSON document (`atrex.scoring.document`), and return the exit code they ask for.

    `weights` is a file of one's own; without it the published weights count, or those of the suite that was built from
    traces. Raises UserError, naming the run, if its records cannot be scored.
    """
    import json

    from rich.text import Text

    from atrex.report.baselines import print_baselines
    from atrex.report.tables import make_console, print_run
    from atrex.scoring.document import score_document
    from atrex.scoring.published import PUBLISHED_SHAPES
    from atrex.scoring.suites import terms, within
    from atrex.scoring.weights import read_weights

    used, shapes = terms(runs)
    if weights is not None:
        used = within(read_weights(weights, {**PUBLISHED_SHAPES, **shapes}), shapes)
    try:
        document = score_document(runs, used, shapes, units=units)
    except ValueError as e:
        raise UserError(str(e)) from None
    if as_json:
        print(json.dumps(document, indent=2, allow_nan=False))
        return document["exit_code"]
    console = make_console()
    for run in runs:
        if len(runs) > 1:
            console.print(Text(f"Run {run.path}", style="bold"))
        if print_baselines(run.records, shapes, console, units=units, notes=run.notes):
            continue
        print_run(run.records, used.values, shapes, console, run=run.run, units=units,
                  notes=[*used.notes, *run.notes])
    return document["exit_code"]
