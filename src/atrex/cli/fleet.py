"""What the commands that take a fleet.yaml share: its options, and the import of its traces with progress."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from atrex.traces.fleet.gather import Gathered
    from atrex.traces.fleet.spec import Fleet
    from atrex.traces.importer import Imported

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Keep the imported traces there, and use what is there already."),
]
JobsOption = Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes; default: the cores.")]
MixedOption = Annotated[
    str, typer.Option("--mixed", help="Steps that mix phases: split them by tokens, or keep them apart as a phase.")
]
InclusiveOption = Annotated[bool, typer.Option("--inclusive", help="Sum durations; overlaps count twice.")]
MinShareOption = Annotated[
    float, typer.Option("--min-share", min=0, max=1, help="Share of a phase from which an operator runs in it.")
]


@contextmanager
def gathered(
    path: Path, data: Path | None, jobs: int | None, nameless: bool = False
) -> Iterator[tuple[Fleet, Gathered]]:
    """The fleet of a fleet.yaml with its traces imported, into a temporary folder where `data` is None.

    Each trace is told on stderr as it is ready, with `nameless` only how many are.
    """
    from atrex.cli.trace import require_tables

    require_tables()
    from atrex.traces.fleet.gather import gather
    from atrex.traces.fleet.spec import load_fleet
    from atrex.traces.report import import_line

    fleet = load_fleet(path)
    ready = 0

    def told(result: Imported) -> None:
        nonlocal ready
        ready += 1
        print(f"imported {ready} traces" if nameless else import_line(result), file=sys.stderr)

    with tempfile.TemporaryDirectory() as temporary:
        yield fleet, gather(fleet, data or Path(temporary) / "data", jobs, told)


def check_mixed(mixed: str) -> None:
    """Raise UserError for an unknown --mixed, before anything is imported for it."""
    from atrex.cli.trace import require_tables
    from atrex.errors import UserError

    require_tables()
    from atrex.traces.report import MIXED_POLICIES

    if mixed not in MIXED_POLICIES:
        raise UserError(f"--mixed {mixed}: expected one of {', '.join(MIXED_POLICIES)}")


def mined(finished: int, of: int) -> None:
    """Tell on stderr how many traces are mined."""
    print(f"mined {finished} of {of} traces", file=sys.stderr)
