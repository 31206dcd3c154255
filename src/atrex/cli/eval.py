"""`atrex eval`: judge candidates."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError


def evaluate(
    candidates: Annotated[
        list[str], typer.Argument(help="A .py file exposing Model, or a directory of <operator>.py files.")
    ],
    problem: Annotated[str | None, typer.Option(help="Operator; default: what the file is named after.")] = None,
    shapes: Annotated[str | None, typer.Option(help='Ids, such as "0,3-5", or "published"; default: all.')] = None,
    dsl: Annotated[str | None, typer.Option(help="Target DSL; default: what the candidate's imports say.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda:N, cuda:0,cuda:1, cuda:all; default: cuda:0.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Randomized input sets per unit.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Run directory; default: runs/<time>-<candidate>.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = False,
    quick: Annotated[bool, typer.Option(help="One shape, one seed, 20 timed calls, no readiness.")] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Of a folder of <operator>/<name>.py, the best known on this chip.")
    ] = False,
    held_out: Annotated[bool, typer.Option(help="Also check the evaluator's held-out shapes.")] = True,
    all_sizes: Annotated[bool, typer.Option("--all-sizes", help="On the CPU, run shapes of any size too.")] = False,
    readiness: Annotated[bool, typer.Option(help="Try what an engine asks of a kernel: graphs, streams, ...")] = True,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Judge what passed again in a fresh worker with new seeds.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="On a GPU too, a process of its own for every unit of a candidate.")
    ] = False,
    judges: Annotated[
        int, typer.Option(min=1, help="Judges per device: they compile and check side by side, and time alone.")
    ] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray: judges on the devices of a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster; default: RAY_ADDRESS, else one on this machine.")
    ] = None,
    require_locked: Annotated[
        bool, typer.Option("--require-locked", help="Refuse a device whose clocks are not known to be locked.")
    ] = False,
    compile_budget: Annotated[float, typer.Option(help="Seconds for one shape's import and first forward.")] = 180.0,
    execution_budget: Annotated[float, typer.Option(help="Seconds for one forward.")] = 10.0,
    performance_budget: Annotated[float, typer.Option(help="Seconds for all timed forwards of a shape.")] = 10.0,
    suite: Annotated[Path | None, typer.Option(help="A suite or problem folder; default: the shipped suite.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Compile, check and time candidates; print a table and leave a run directory.

    Exit status: 0 when every unit could be judged (failed units included), 1 when a unit ended in an error, 2 for bad
    input, 130 when interrupted.
    """
    for name, value in (
        ("compile", compile_budget),
        ("execution", execution_budget),
        ("performance", performance_budget),
    ):
        if not value > 0:
            raise UserError(f"--{name}-budget {value:g}: expected a number of seconds above 0")
    if resume and out is None:
        raise UserError("--resume needs --out: the run directory to continue")
    from atrex.evaluate.spawn import Zygote

    zygote = Zygote()  # before this process imports torch, so that both imports run side by side
    try:
        from atrex.cli.score import print_outcome
        from atrex.evaluate.budgets import Budgets
        from atrex.evaluate.run import Request, run
        from atrex.hardware.detect import default_device

        request = Request(
            candidates=candidates,
            problem=problem,
            shapes=shapes,
            dsl=dsl,
            device=device or default_device(),
            seeds=seeds,
            budgets=Budgets(compile_budget, execution_budget, performance_budget),
            suite=suite,
            out=out or _default_out(candidates[0]),
            resume=resume,
            quick=quick,
            held_out=held_out,
            all_sizes=all_sizes,
            readiness=readiness,
            confirm=confirm,
            fresh=fresh,
            require_locked=require_locked,
            judges=judges,
            engine=engine,
            address=address,
            best=best,
        )
        from atrex.report.live import Progress

        started = time.monotonic()
        with Progress() as progress:
            outcome = run(request, progress.unit, zygote, progress.watch)
    finally:
        zygote.close()
    seconds = time.monotonic() - started
    print_outcome(outcome, seconds, as_json)
    left_out = outcome.about.get("too_large")
    if left_out:
        named = ", ".join(f"{operator}/{shape}" for operator, shape in left_out[:8])
        more = f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""
        print(f"not run, too large for this device (--all-sizes runs them): {named}{more}", file=sys.stderr)
    if outcome.interrupted:
        print(
            f"interrupted: {len(outcome.records)} units are in {outcome.path}; --resume --out {outcome.path} continues",
            file=sys.stderr,
        )
        raise typer.Exit(130)
    from atrex.scoring.failures import exit_code

    raise typer.Exit(exit_code(outcome.records))


def _default_out(candidate: str) -> Path:
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(candidate).stem}"
