"""`atrex repro`: a failing unit as a script of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def repro(
    run: Annotated[Path, typer.Argument(help="Run directory written by `atrex eval`.")],
    unit: Annotated[str, typer.Argument(metavar="UNIT", help='A unit, as "operator/shape".')],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the script; default: repro_<operator>_<shape>.py.")
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Candidate file, where the run judged several on this unit.")
    ] = None,
) -> None:
    """Write a script that runs a unit's failing case with the same inputs, outside the judge.

    The run must be closed: its seeds are secret until then.
    """
    from atrex.evaluate.repro import write_repro

    print(write_repro(run, unit, out, candidate))
