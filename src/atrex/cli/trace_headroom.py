"""`atrex trace headroom`: what better kernels could give back of a fleet's device time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atrex.cli.fleet import JobsOption, gathered, mined
from atrex.cli.trace import DirArgument, JsonOption, require_tables


def headroom(
    directory: DirArgument,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="A run directory: compare with its best kernels too.")
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="A fleet.yaml: its traces in DIR, in card-hours, with its hints."),
    ] = None,
    suite: Annotated[
        Path | None, typer.Option("--suite", metavar="DIR", help="The suite that RUN judged, if not where it was then.")
    ] = None,
    jobs: JobsOption = None,
    limit: Annotated[int, typer.Option("--limit", help="Rows to show; 0 for all.")] = 30,
    as_json: JsonOption = False,
) -> None:
    """Device time that better kernels could give back, by operator: against the roofline, and against a run's kernels.

    Shares are of all device time. With --fleet they are weighted by card-hours, which are shown beside them.
    """
    require_tables()
    from atrex.traces.dataset import open_dataset
    from atrex.traces.fleet.headroom import document, fleet_of, load_judged
    from atrex.traces.fleet.headroom import headroom as rows_of
    from atrex.traces.mining.mine import mine

    judged = load_judged(run, suite) if run is not None else None
    if fleet is not None:
        with gathered(fleet, directory, jobs) as (about, traces):
            found = document(rows_of(about, traces, *mine(about, traces, jobs, mined), judged), about, judged)
    else:
        about, traces = fleet_of(open_dataset(directory))
        found = document(rows_of(about, traces, *mine(about, traces, jobs, mined), judged), None, judged)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    _print(found, limit)


def _print(found: dict[str, Any], limit: int) -> None:
    from rich.table import Table

    from atrex.report.tables import make_console

    console = make_console()
    hours, compared = found["card_hours"], found["run_chips"] is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    titles = ["share", "shape known", "recoverable", "attainable"] + (["by the run"] if compared else [])
    for title in titles + (["card-hours", "recoverable", "attainable"] if hours is not None else []):
        table.add_column(title, justify="right")
    rows = found["operators"]
    for row in rows if limit <= 0 else rows[:limit]:
        cells = [row["share"], row["shape_known"], row["recoverable"], row["recoverable_attainable"]]
        cells += [row["recoverable_by_run"]] if compared else []
        texts = ["-" if c is None else f"{c:.2%}" for c in cells]
        if hours is not None:
            by = row["card_hours"]
            texts += [f"{by[key]:.4g}" for key in ("share", "recoverable", "recoverable_attainable")]
        table.add_row(row["operator"], *texts)
    console.print(table)
    if 0 < limit < len(rows):
        console.print(f"... {len(rows) - limit} more", markup=False)
    whole = sum(row["recoverable_attainable"] for row in rows)
    said = f"{whole:.1%} of the device time" + (f", {whole * hours:.4g} of {hours:.4g} card-hours" if hours else "")
    console.print(
        f"attainable in all: {said}. recoverable: traced time less the roofline of each call's shape; attainable: less "
        "the larger of the roofline and the trace's shortest kernel", markup=False, soft_wrap=True,
    )  # fmt: skip
    under = sum(row["under_roofline"] for row in rows)
    if under > 0.0005:
        console.print(f"{under:.1%} of the device time is in calls under their roofline: nothing is counted for them",
                      markup=False, soft_wrap=True)  # fmt: skip
    if compared and not any(row["recoverable_by_run"] is not None for row in rows):
        chips = ", ".join(found["run_chips"]) or "none"
        console.print(f"the run has no kernel for these shapes on the traces' chips (its own: {chips})", markup=False)
