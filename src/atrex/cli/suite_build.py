"""`atrex suite build` and `atrex suite diff`: a suite from a fleet's traces, and what changed since the last one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.cli.fleet import DataOption, InclusiveOption, JobsOption, MinShareOption, MixedOption, gathered

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def build(
    fleet: Annotated[Path, typer.Option("--fleet", metavar="FILE", help="A fleet.yaml.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The suite's folder.")],
    coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Share of an operator's device time that its shapes are kept for.")
    ] = 0.95,
    redact: Annotated[
        bool, typer.Option("--redact", help="Write no name of a model, application, host, user or path.")
    ] = False,
    mixed: MixedOption = "split",
    inclusive: InclusiveOption = False,
    min_share: MinShareOption = 0.001,
    data: DataOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build a suite of problem folders from a fleet's traces: mined shapes, weights, traced production times.

    A shape stands for its bucket: calls alike in every fixed dimension and near in the dynamic ones. Families of
    kernels that the suite has no operator for are listed with their share.
    """
    with gathered(fleet, data, jobs) as (about, traces):
        from atrex.report.tables import make_console
        from atrex.traces.fleet.build import document, write_suite
        from atrex.traces.fleet.build_report import print_build
        from atrex.traces.fleet.plan import make_plan
        from atrex.traces.fleet.redact import Names, Redacted

        plan = make_plan(about, traces, coverage, min_share, mixed, inclusive, jobs, _mined)
        names = Redacted(about, traces) if redact else Names(about)
        write_suite(plan, out, names, lambda operator: print(f"writing {operator}", file=sys.stderr))
        found = document(plan, names)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print_build(found, make_console())
    print(f"{out}: check it with `atrex suite validate {out}`, judge with `atrex eval --suite {out}`")


def _mined(finished: int, of: int) -> None:
    print(f"mined {finished} of {of} traces", file=sys.stderr)
