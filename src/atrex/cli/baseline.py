"""`atrex baseline`: judge what people run today, so that candidates can be compared with it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atrex.errors import UserError

if TYPE_CHECKING:
    from atrex.baselines import Baseline
    from atrex.evaluate.run import Request
    from atrex.problems.model import Problem


def baseline(
    name: Annotated[str | None, typer.Argument(help="torch, torch.compile, fla, ...; default: list them.")] = None,
    problem: Annotated[
        list[str] | None, typer.Option("--problem", metavar="OP", help="Operator; may be repeated; default: all.")
    ] = None,
    shapes: Annotated[str | None, typer.Option(help='Ids, such as "0,3-5", or "published"; default: all.')] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:N, cuda:0,cuda:1, cuda:all; default: cuda:0.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Randomized input sets per unit.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Run directory; default: runs/<time>-baseline-NAME.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = False,
    quick: Annotated[bool, typer.Option(help="One shape, one seed, 20 timed calls.")] = False,
    all_sizes: Annotated[bool, typer.Option("--all-sizes", help="On the CPU, run shapes of any size too.")] = False,
    judges: Annotated[
        int, typer.Option(min=1, help="Judges per device: they compile and check side by side, and time alone.")
    ] = 1,
    compile_budget: Annotated[float, typer.Option(help="Seconds for one shape's import and first forward.")] = 600.0,
    source: Annotated[bool, typer.Option("--source", help="Print each --problem's code, and judge nothing.")] = False,
    suite: Annotated[Path | None, typer.Option(help="A suite or problem folder; default: the shipped suite.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Judge a baseline as a candidate of known origin; `atrex score RUN --baseline BASERUN` compares with it.

    Operators and shapes that the library does not have are named and are no failure. Exit status: as of `atrex eval`;
    2 with the line to install it where the library is missing.
    """
    import atrex.baselines

    if name is None:
        _list(as_json)
        return
    chosen = atrex.baselines.get(name)
    if resume and out is None:
        raise UserError("--resume needs --out: the run directory to continue")
    if not compile_budget > 0:
        raise UserError(f"--compile-budget {compile_budget:g}: expected a number of seconds above 0")
    from atrex.hardware.detect import default_device
    from atrex.problems.load import load_suite
    from atrex.problems.shape_ids import select_shapes

    loaded = load_suite(suite)
    problems = [loaded.problem(operator) for operator in problem or loaded.problems]
    if source:
        _print_sources(chosen, problems)
        return
    device = device or default_device()
    _say_version(chosen, chosen.require(device))
    covered = [p for p in problems if chosen.has(p.operator)]
    absent = [p.operator for p in problems if not chosen.has(p.operator)]
    if absent:
        print(f"not in {name}: {', '.join(absent)}", file=sys.stderr)
    if not covered:
        if as_json:
            print(json.dumps({"baseline": name, "absent": absent, "runs": []}, indent=2))
        return
    asked = {p.operator: [shape.id for shape in select_shapes(p, shapes)] for p in covered}
    lacks = {
        (p.operator, shape): why for p in covered for shape in asked[p.operator]
        if (why := chosen.lacks(p, p.shape(shape)))
    }  # fmt: skip
    for (operator, shape), why in lacks.items():
        print(f"not in {name}: {operator} {shape}: {why}", file=sys.stderr)
    covered = [p for p in covered if any((p.operator, shape) not in lacks for shape in asked[p.operator])]
    if not covered:
        return
    from atrex.evaluate.budgets import Budgets
    from atrex.evaluate.run import Request

    out = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-baseline-{name}"
    folder = out / "artifacts"
    _write(folder, {p.operator: chosen.text(p) for p in covered}, resume)
    # Held-out shapes and readiness say whether a kernel can be trusted; this one is only compared with.
    request = Request(
        candidates=[str(folder)], shapes=shapes, device=device, seeds=seeds, budgets=Budgets(compile=compile_budget),
        suite=suite, out=out, resume=resume, quick=quick, held_out=False, all_sizes=all_sizes, readiness=False,
        judges=judges, left_out=frozenset(lacks),
        origins={operator: chosen.origin(operator) for operator in loaded.problems if chosen.has(operator)},
    )  # fmt: skip
    _judge(request, as_json)


def _judge(request: Request, as_json: bool) -> None:
    from atrex.cli.score import print_outcome
    from atrex.evaluate.run import run
    from atrex.report.live import Progress
    from atrex.scoring.failures import exit_code

    started = time.monotonic()
    with Progress() as progress:
        outcome = run(request, progress.unit, watch=progress.watch)
    print_outcome(outcome, time.monotonic() - started, as_json)
    if outcome.interrupted:
        print(f"interrupted; --resume --out {outcome.path} continues", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(exit_code(outcome.records))


def _write(folder: Path, texts: dict[str, str], resume: bool) -> None:
    """The candidates' files. A run that is continued keeps its own."""
    if (folder.parent / "run.json").exists():
        if resume:
            return
        raise UserError(f"{folder.parent}: holds a run already; --resume continues it, another --out starts a new one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for operator, text in texts.items():
            (folder / f"{operator}.py").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); give a writable folder with --out") from None


def _say_version(chosen: Baseline, version: str) -> None:
    if not chosen.knows(version):
        known = ", ".join(chosen.versions)
        print(f"{chosen.distribution} {version}: the adapter was written against {known}", file=sys.stderr)


def _print_sources(chosen: Baseline, problems: list[Problem]) -> None:
    for problem in problems:
        if chosen.has(problem.operator):
            print(f"# {problem.operator}.py\n{chosen.text(problem)}")


def _list(as_json: bool) -> None:
    import atrex.baselines
    from atrex.problems.load import load_suite

    operators = list(load_suite().problems)
    every = [atrex.baselines.get(name) for name in atrex.baselines.names()]
    rows = [
        {
            "baseline": b.name, "library": b.distribution, "installed": b.version, "written_against": list(b.versions),
            "devices": list(b.devices), "production": b.production, "install": b.install,
            "operators": [operator for operator in operators if b.has(operator)],
        }
        for b in every
    ]  # fmt: skip
    if as_json:
        print(json.dumps({"baselines": rows}, indent=2))
        return
    from rich.text import Text

    from atrex.report.tables import make_console, new_table

    table = new_table("Baselines", "name", "library", "installed", "operators", "install", left=3)
    table.columns[-1].justify = "left"
    for row in rows:
        table.add_row(
            row["baseline"], row["library"], row["installed"] or "no",
            f"{len(row['operators'])} of {len(operators)}", Text("" if row["installed"] else row["install"]),
        )  # fmt: skip
    make_console().print(table)
