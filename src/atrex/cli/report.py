"""`atrex report`: the analyses of the paper over finished runs, and pages over these, campaigns and traces."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN|DIR|CAMPAIGN|TRACESET...",
            help="Runs of `atrex eval`, campaigns, data sets of traces, or folders that hold some.",
        ),
    ] = None,
    pair: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--pair", metavar="VANILLA AKA", help="Two runs of one candidate set each: without and with AKA."),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option("--baseline", metavar="BASERUN", help="A run of `atrex baseline` to compare with; repeatable."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="JSON object {operator: weight} to score under.")
    ] = None,
    suite: Annotated[
        Path | None, typer.Option("--suite", help="Where the suite is now that was judged, for regimes.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="SITE", help="Write pages to look at, the tables as CSV and JSON below data/."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables: --out holds them.")] = False,
) -> None:
    """The paper's analyses: main results, correctness against DSL dominance, operator difficulty, regimes, tokens,
    failures, pass@k.

    Sets stand in one table only if they agree in suite, DSL, device, prompt and tool policy. Where they do not, each
    group has tables of its own, what differs is said, and the exit status is 1; so it is where units are in error.
    Campaigns and data sets of traces are shown on the pages that --out writes.
    """
    from atrex.report.sources import Kind, recognise
    from atrex.report.study.document import document, pair_study, print_study, study
    from atrex.report.study.sets import find_sets
    from atrex.report.tables import make_console

    if not runs and pair is None:
        raise UserError("RUN|DIR, --pair: expected runs to report on, a pair, or both")
    if quiet and out is None:
        raise UserError("--quiet: expected --out with it; the tables would be nowhere")
    sources = recognise(runs or ())
    judged = [path for path in runs or () if any(s.kind is Kind.RUN and s.path.is_relative_to(path) for s in sources)]
    if not judged and pair is None and out is None:
        raise UserError("--out: expected a folder; campaigns and data sets of traces are shown on pages alone")
    made = study(find_sets(judged, baseline or (), weights), suite) if judged else None
    if pair is not None:
        made = pair_study(*pair, baseline or (), weights, beside=made)
    if out is not None:
        from atrex.report.site.whole import write_whole

        site = write_whole(out, made, sources, suite)
        print(f"{out / 'index.html'}: {site.count} pages, tables as data in {out / 'data'}", file=sys.stderr)
    if made is None:
        return
    if as_json:
        print(json.dumps(document(made), indent=2, allow_nan=False))
    elif not quiet:
        print_study(made, make_console())
    if made.exit_code:
        raise typer.Exit(made.exit_code)
