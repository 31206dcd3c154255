"""`atrex compile`: the compile gate alone, without a device."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atrex.errors import UserError

if TYPE_CHECKING:
    from atrex.compile.gate import Job
    from atrex.compile.outcome import Outcome
    from atrex.dsls.offline import Target

_REASONS_SHOWN = 20


def compile_command(
    candidates: Annotated[
        list[str], typer.Argument(help="A .py file exposing Model, or a directory of <operator>.py files.")
    ],
    problem: Annotated[str | None, typer.Option(help="Operator; default: what the file is named after.")] = None,
    shapes: Annotated[str | None, typer.Option(help='Ids, such as "0,3-5", or "published"; default: all.')] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="cpu, an architecture (sm_90a, gfx942) or a chip (H20); repeatable. Default: the DSL's own."),
    ] = None,
    dsl: Annotated[str | None, typer.Option(help="Target DSL; default: what the candidate's imports say.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one shape.")] = 180.0,
    suite: Annotated[Path | None, typer.Option(help="A suite or problem folder; default: the shipped suite.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table, with versions and reasons, to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compile what candidates launch, for targets that need not be here.

    Every shape is compiled, failed or undetermined: what depends on values that only a device computes, or on a package
    that is not installed, is undetermined and no failure. Exit status: 0 when nothing failed, 1 when something did, 2
    for bad input.
    """
    if not timeout > 0:
        raise UserError(f"--timeout {timeout:g}: expected a number of seconds above 0")
    jobs = _jobs(candidates, problem, shapes, target, dsl, suite)
    started = time.monotonic()
    outcomes = _run(jobs, timeout)
    seconds = time.monotonic() - started
    from atrex.compile.table import record, table

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record(outcomes, _command(), seconds), indent=1) + "\n")
    if as_json:
        print(json.dumps({"outcomes": [o.as_dict() for o in outcomes], "table": table(outcomes)}, indent=1))
    else:
        _print(outcomes, table(outcomes))
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)


def _jobs(
    candidates: list[str],
    problem: str | None,
    shapes: str | None,
    targets: list[str] | None,
    dsl: str | None,
    suite: Path | None,
) -> list[Job]:
    """One job per candidate and target that its DSL compiles for. Raises UserError when a target is nobody's."""
    from atrex import dsls
    from atrex.compile.gate import Job, check
    from atrex.dsls.offline import parse_target
    from atrex.evaluate.candidates import resolve
    from atrex.problems.load import load_suite
    from atrex.problems.shape_ids import select_shapes

    loaded = load_suite(suite)
    asked = [parse_target(name) for name in targets or ()]
    jobs: list[Job] = []
    taken: set[str] = set()
    found = resolve(candidates, list(loaded.problems), problem)
    for candidate in found:
        name = dsl or dsls.infer(candidate.source) or _by_target(asked)
        wanted: list[Target] = asked or [parse_target(dsls.get(name).usual_target)]
        chosen = [shape.id for shape in select_shapes(loaded.problem(candidate.operator), shapes)]
        for one in wanted:
            if not dsls.get(name).compiles_for(one) and (len(found) > 1 or len(wanted) > 1):
                continue
            check(name, one)
            taken.add(one.name)
            folder = loaded.problem(candidate.operator).folder
            jobs.append(
                Job(
                    candidate.name, candidate.source, candidate.path.name, candidate.operator, chosen, name, one, folder
                )
            )
    if unused := [one.name for one in asked if one.name not in taken]:
        raise UserError(f"--target {unused[0]}: no candidate's DSL compiles for it")
    return jobs


def _by_target(asked: list[Target]) -> str:
    return "cpp" if asked and asked[0].backend == "cpu" else "triton"


def _run(jobs: list[Job], timeout: float) -> list[Outcome]:
    from atrex.compile.gate import compile_candidate
    from atrex.evaluate.confine import warning

    total = sum(len(job.shapes) for job in jobs)
    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        what = f"{outcome.candidate}  {outcome.operator}/{outcome.shape}  {outcome.target}  {outcome.status}"
        done = sum(not a["reason"] for a in outcome.artifacts)
        detail = outcome.reason or f"{done} artifact{'s' * (done != 1)}, {outcome.seconds:.1f} s"
        print(f"[{len(outcomes)}/{total}]  {what}  {detail[:200]}", file=sys.stderr, flush=True)

    warned: set[str | None] = {None}

    def held(what: dict[str, Any]) -> None:
        if (line := warning(what)) not in warned:
            warned.add(line)
            print(line, file=sys.stderr, flush=True)

    for job in jobs:
        compile_candidate(job, timeout, tell, held)
    return outcomes


def _command() -> str:
    return " ".join(["atrex", *sys.argv[1:]])


def _print(outcomes: list[Outcome], cells: dict[str, dict[str, dict[str, Any]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from atrex.report.tables import make_console

    console = make_console()
    targets = sorted({o.target for o in outcomes})
    console.print("shapes compiled / failed / undetermined (artifacts)")
    shown = Table()
    shown.add_column("DSL")
    for name in targets:
        shown.add_column(name, justify="right")
    for dsl, by_target in cells.items():
        shown.add_row(dsl, *(_cell(by_target.get(name)) for name in targets))
    console.print(shown)
    reasons = {(o.candidate, o.target, o.status, o.reason): o for o in outcomes if o.reason}
    for (candidate, target, status, reason), first in list(reasons.items())[:_REASONS_SHOWN]:
        style = "red" if status == "failed" else "yellow"
        where = f"{candidate} {first.operator}/{first.shape}"
        same = sum((o.candidate, o.target, o.status, o.reason) == (candidate, target, status, reason) for o in outcomes)
        others = f" (and {same - 1} more shapes)" if same > 1 else ""
        console.print(Text(f"{status}: {where}{others} {target}: {reason}", style=style))
    if len(reasons) > _REASONS_SHOWN:
        console.print(Text(f"and {len(reasons) - _REASONS_SHOWN} more reasons; --json has all", style="yellow"))


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    s, a = found["shapes"], found["artifacts"]
    lost = f", {a['failed']} failed" if a["failed"] else ""
    return f"{s['compiled']} / {s['failed']} / {s['undetermined']}  ({a['compiled']}{lost})"
