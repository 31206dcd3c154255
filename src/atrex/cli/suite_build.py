"""`atrex suite build` and `atrex suite diff`: a suite from a fleet's traces, and what changed since the last one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.cli.fleet import (
    DataOption,
    InclusiveOption,
    JobsOption,
    MinShareOption,
    MixedOption,
    check_mixed,
    gathered,
    mined,
)

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
    check_mixed(mixed)
    with gathered(fleet, data, jobs, nameless=redact) as (about, traces):
        from atrex.report.tables import make_console
        from atrex.traces.fleet.build import document, write_suite
        from atrex.traces.fleet.build_report import print_build
        from atrex.traces.fleet.plan import make_plan
        from atrex.traces.fleet.redact import Names, Redacted

        plan = make_plan(about, traces, coverage, min_share, mixed, inclusive, jobs, mined)
        names = Redacted(about, traces) if redact else Names(about)
        write_suite(plan, out, names, lambda operator: print(f"writing {operator}", file=sys.stderr))
        found = document(plan, names)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print_build(found, make_console())
    print(f"{out}: check it with `atrex suite validate {out}`, judge with `atrex eval --suite {out}`")


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A suite folder.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A suite folder.")],
    min_move: Annotated[
        float, typer.Option(min=0, help="Weights that move by less, absolutely, are left out.")
    ] = 0.001,
    min_time: Annotated[float, typer.Option(min=0, help="Traced times that move by less, relatively.")] = 0.05,
    as_json: JsonOption = False,
) -> None:
    """What changed from one suite to the next: operators, shapes and weights that appear, vanish or move.

    A mined shape is the same as another of the same fixed dimensions and buckets; any other shape only as its equal.
    """
    from dataclasses import asdict

    from atrex.problems.diff import diff_suites
    from atrex.problems.load import load_suite

    before, after = load_suite(old), load_suite(new)
    found = diff_suites(before, after, min_move, min_time)
    if as_json:
        versions = {"old": before.version, "new": after.version}
        print(json.dumps({**versions, "same": found.same, **asdict(found)}, indent=2))
        return
    print(f"{old} ({before.version}) -> {new} ({after.version})")
    for title, names in (("new operators", found.appeared), ("gone operators", found.vanished)):
        if names:
            print(f"{title}: {', '.join(names)}")
    for sign, suite, pairs in (("+", after, found.new_shapes), ("-", before, found.gone_shapes)):
        for operator, shape in pairs:
            print(f"{sign} {operator} {shape}: {_kwargs(suite.problems[operator].shapes[shape])}")
    for moved in found.moved_shapes:
        changes = [f"{name} {a} -> {b}" for name, (a, b) in moved.kwargs.items()]
        changes += [f"{a:.4g} -> {b:.4g} us on {chip}" for chip, (a, b) in moved.us.items()]
        which = moved.new if moved.old == moved.new else f"{moved.old} -> {moved.new}"
        print(f"~ {moved.operator} {which}: {', '.join(changes)}")
    for operator, (a, b) in found.weights.items():
        print(f"weight of {operator}: {_share(a)} -> {_share(b)}")
    if found.same:
        print("nothing changed")


def _kwargs(shape) -> str:
    return " ".join(f"{name}={value}" for name, value in {**shape.init_kwargs, **shape.input_kwargs}.items())


def _share(weight: float | None) -> str:
    return "-" if weight is None else f"{weight:.2%}"
