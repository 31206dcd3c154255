"""`atrex suite weights` and `atrex suite stats`: what a suite consists of."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
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

SuiteOption = Annotated[
    Path | None, typer.Option("--suite", help="A suite or problem folder; default: the shipped suite.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def weights(
    phase: Annotated[str | None, typer.Option(help="Only operators of this phase: prefill or decode.")] = None,
    suite: SuiteOption = None,
    fleet: Annotated[
        Path | None, typer.Option("--fleet", metavar="FILE", help="A fleet.yaml: weights from its traces instead.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="With --fleet: write what `score --weights` takes.")
    ] = None,
    mixed: MixedOption = "split",
    inclusive: InclusiveOption = False,
    min_share: MinShareOption = 0.001,
    data: DataOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Importance weights, heaviest first: shares of the fleet's GPU time, normalized to one, and their running sum.

    With --phase, "share" is the share among the operators of that phase. An operator that runs in both phases has one
    weight for both, and is in either list with it.
    With --fleet the weights are those of the traces that a fleet.yaml names: the mean share of a phase's device time
    over the phases that an operator runs in, weighted by card-hours.
    """
    from atrex.cli.suite import print_table
    from atrex.errors import UserError
    from atrex.problems.load import load_suite
    from atrex.problems.stats import suite_weights

    if fleet is not None:
        if phase is not None or suite is not None:
            raise UserError("--fleet: weights come from its traces: expected no --phase or --suite beside it")
        _fleet_weights(fleet, out, mixed, inclusive, min_share, data, jobs, as_json)
        return
    if out is not None or data is not None:
        raise UserError("--out and --data go with --fleet FILE")
    rows = suite_weights(load_suite(suite), phase)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    cells = [
        [row.operator, row.phase or "no folder", _percent(row.weight), _percent(row.share), _percent(row.cumulative)]
        for row in rows
    ]
    print_table(["operator", "phase", "weight", "share", "cumulative"], cells)


def _fleet_weights(
    fleet: Path, out: Path | None, mixed: str, inclusive: bool, min_share: float, data: Path | None, jobs: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    check_mixed(mixed)
    with gathered(fleet, data, jobs) as (about, traces):
        from atrex.report.tables import make_console
        from atrex.traces.fleet.report import print_weights, weights_document, write_weights
        from atrex.traces.fleet.weights import fleet_weights

        found = fleet_weights(about, traces, min_share, mixed, inclusive, jobs=jobs, done=mined)
    if out is not None:
        write_weights(found, out)
    if as_json:
        print(json.dumps(weights_document(found), indent=2))
    else:
        print_weights(found, make_console())
    if out is not None:
        print(f"weights written to {out}", file=sys.stderr)


def stats(suite: SuiteOption = None, as_json: JsonOption = False) -> None:
    """Weights, shapes, precision, phase, arithmetic intensity and regime by operator, and where the shapes come from.

    Intensity is total FLOPs over total bytes, the median over an operator's published shapes; from 10 FLOP/byte on an
    operator is compute-bound; one without arithmetic is index.
    """
    from atrex.cli.suite import print_table
    from atrex.problems.load import load_suite
    from atrex.problems.stats import suite_stats

    loaded = load_suite(suite)
    found = suite_stats(loaded)
    if as_json:
        print(json.dumps({"version": loaded.version, **found.as_json()}, indent=2))
        return
    headers = ["operator", "weight", "cumul.", "shapes", "dtype", "phase", "regime", "FLOP/B", "origin"]
    cells = [
        [
            row.operator, _percent(row.weight), _percent(row.cumulative), _shapes(row.shapes, row.added),
            row.dtype or "-", row.phase, row.regime, "-" if row.intensity is None else f"{row.intensity:.4g}",
            row.framework or "-", "-" if row.profiles is None else row.profiles,
        ]
        for row in found.operators
    ]  # fmt: skip
    print_table([*headers, "profiles"], cells)
    print(f"{len(found.operators)} operators, {found.shapes} published shapes and {found.added} added ones, ", end="")
    print(f"{found.profiles} profiles")
    for title, counts in (
        ("regime, by operator", found.regimes),
        ("dtype, by operator", found.dtypes),
        ("phase, by operator", found.phases),
        ("origin, by published shape", found.origins),
        *((f"production backend on {chip}, by shape", counts) for chip, counts in found.backends.items()),
    ):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    if found.missing:
        print(f"weights without a folder: {', '.join(found.missing)}")


def _shapes(published: int, added: int) -> str:
    return f"{published} + {added}" if added else str(published)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
