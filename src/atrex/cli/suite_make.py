"""`atrex suite new` and `atrex suite release`: what changes a suite, beside what looks at one (`cli/suite.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    operator: Annotated[str, typer.Argument(metavar="OP", help="Name of the new operator.")],
    parent: Annotated[Path, typer.Option("--in", help="Folder to make it in.")] = Path("."),
) -> None:
    """Write a skeleton folder for a new operator: it validates as it is, and is edited from there."""
    from atrex.problems.skeleton import new_problem

    folder = new_problem(operator, parent)
    print(f"{folder}: edit reference.py, input.py and work.py, then run")
    print(f"  atrex suite generate-roofline {folder} && atrex suite validate {folder}")


def release(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Version of the release, such as 1.0.")],
    suite: Annotated[Path | None, typer.Option(help="A suite folder; default: the shipped suite.")] = None,
    note: Annotated[str, typer.Option(help="What the release changes for its users.")] = "",
) -> None:
    """Freeze the suite, chip constants included: its content is hashed, and a later edit of it is refused."""
    from atrex.problems.load import SHIPPED, load_suite
    from atrex.problems.release import release as freeze

    folder = suite or SHIPPED
    load_suite(folder)  # a suite that does not load is not released
    entry = freeze(folder, version, note)
    print(f"release {version}: {len(entry['files'])} files, hash {entry['hash'][:16]}")
    for kind, names in entry["changes"].items():
        if names:
            print(f"  {kind}: {', '.join(names[:12])}" + (f" and {len(names) - 12} more" if len(names) > 12 else ""))


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the problem folders into.")],
    layout: Annotated[str, typer.Option(help="Form of the folders: atrex-bench.")] = "atrex-bench",
    problem: Annotated[str | None, typer.Option(help="Only this operator.")] = None,
    suite: Annotated[Path | None, typer.Option(help="A suite folder; default: the shipped suite.")] = None,
) -> None:
    """Write five-file folders that the published evaluator can read, with our inputs and ceilings."""
    from atrex.errors import UserError
    from atrex.problems.export import LAYOUTS, export_problem
    from atrex.problems.load import load_suite

    if layout not in LAYOUTS:
        raise UserError(f"--layout {layout}: expected {' or '.join(LAYOUTS)}")
    loaded = load_suite(suite)
    chosen = [loaded.problem(problem)] if problem else list(loaded.problems.values())
    for each in chosen:
        print(export_problem(each, directory, loaded.weights.get(each.operator)))
