"""`atrex score`: the figures of finished runs, under the published weights or one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories written by `atrex eval`.")],
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="JSON object {operator: weight} to score under.")
    ] = None,
    units: Annotated[bool, typer.Option("--units", help="Show every unit too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Score finished runs: per operator, per failure category and over the suite.

    Exits with 1 if a unit ended in an evaluation error, for then the figures are not sound.
    """
    # Deferred so that `atrex --help` does not wait for pydantic and rich's tables.
    import json

    from rich.text import Text

    from atrex.errors import UserError
    from atrex.report.tables import make_console, print_run
    from atrex.scoring.document import score_document
    from atrex.scoring.published import PUBLISHED_SHAPES
    from atrex.scoring.runs import load_run
    from atrex.scoring.weights import published_weights, read_weights

    used = read_weights(weights, PUBLISHED_SHAPES) if weights else published_weights()
    loaded = [load_run(path) for path in runs]
    try:
        document = score_document(loaded, used, PUBLISHED_SHAPES, units=units)
    except ValueError as e:
        raise UserError(str(e)) from None
    if as_json:
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        console = make_console()
        for run in loaded:
            if len(loaded) > 1:
                console.print(Text(f"Run {run.path}", style="bold"))
            print_run(run.records, used.values, PUBLISHED_SHAPES, console, run=run.run, units=units,
                      notes=[*used.notes, *run.notes])
    if document["exit_code"]:
        raise typer.Exit(document["exit_code"])
