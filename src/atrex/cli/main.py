"""`atrex`: the command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import atrex
from atrex.cli import (
    attacks,
    baseline,
    compare,
    demo,
    doctor,
    generate,
    hardware,
    mcp,
    optimize,
    optimize_ablate,
    optimize_bundle,
    profile,
    report,
    repro,
    score,
    serve,
    serve_judge,
    suite,
    suite_build,
    suite_make,
    suite_stats,
    suite_validate,
    trace_headroom,
)
from atrex.cli import compile as compilation
from atrex.cli import eval as evaluation
from atrex.cli import trace as traces
from atrex.cli import wiki as cards
from atrex.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Is this GPU kernel production-ready?",
)
suite.app.command("validate")(suite_validate.validate)
suite.app.command("weights")(suite_stats.weights)
suite.app.command("stats")(suite_stats.stats)
suite.app.command("build")(suite_build.build)
suite.app.command("diff")(suite_build.diff)
suite.app.command("new")(suite_make.new)
suite.app.command("release")(suite_make.release)
suite.app.command("export")(suite_make.export)
traces.app.command("headroom")(trace_headroom.headroom)
app.add_typer(suite.app, name="suite", help="The problems: list, show, validate.")
app.add_typer(hardware.app, name="hardware", help="Chips and their ceilings: list, show, detect, calibrate.")
app.add_typer(traces.app, name="trace", help="Serving traces: import them, and see where the device time goes.")
app.add_typer(cards.app, name="wiki", help="Sourced cards on making kernels fast: search, show, specifications.")
app.command("eval")(evaluation.evaluate)
app.command("compile")(compilation.compile_command)
app.command("baseline")(baseline.baseline)
app.command("score")(score.score)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("profile")(profile.profile)
app.command("attacks")(attacks.attacks)
app.command("repro")(repro.repro)
app.command("serve")(serve.serve)
app.command("serve-judge")(serve_judge.serve_judge)
app.command("mcp")(mcp.mcp)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("agents")(generate.agents)
optimize.app.command("ablate")(optimize_ablate.ablate)
optimize_bundle.register(optimize.app)
app.add_typer(optimize.app, name="optimize", help="Campaigns that make a kernel faster, every claim measured.")
app.command("generate")(generate.generate)


def _version(asked: bool) -> None:
    if asked:
        print(f"atrex {atrex.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Judge GPU kernels against serving-derived problems and their hardware ceilings."""


def main() -> None:
    """Entry point. A UserError is one line and exit status 2."""
    try:
        app(standalone_mode=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
