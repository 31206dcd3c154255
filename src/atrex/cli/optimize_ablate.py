"""`atrex optimize ablate`: dropout policies compared by whole campaigns."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def ablate(
    out: Annotated[Path, typer.Option(help="JSON lines, one a campaign. A file that is there is gone on with.")],
    problem: Annotated[str, typer.Option(help="Operator of which the tuner has a C++ template.")] = "rms_norm",
    shapes: Annotated[str, typer.Option(help='Shape ids, such as "32,34".')] = "32",
    campaigns: Annotated[int, typer.Option(min=2, help="Of each policy.")] = 30,
    policies: Annotated[str, typer.Option(help="Of none, uniform, age, failure, category.")] = "none,uniform,category",
    budget: Annotated[
        int, typer.Option(min=1, help="Measurements of a campaign: rounds of incumbent and candidate, once each.")
    ] = 400,
    restarts: Annotated[int, typer.Option(min=1, help="At most so many in a campaign.")] = 30,
    again: Annotated[int, typer.Option(min=3, help="Rounds in which incumbents are measured for the table.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="Of the kernels.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the campaigns, their order and the dropout.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The table as JSON.")] = False,
) -> None:
    """Compare dropout policies: campaigns of the tuner on a compiled C++ kernel, at an equal budget, interleaved."""
    from atrex.optimize.ablate.campaigns import Ablation, Design
    from atrex.optimize.ablate.table import tabulate

    design = Design(
        problem, tuple(shapes.split(",")), tuple(policies.split(",")), campaigns, budget, restarts, again, threads, seed
    )
    lines = Ablation(design, out, (lambda line: None) if as_json else print).run()
    table = tabulate(lines)
    if as_json:
        print(json.dumps(asdict(table)))
        return
    _show(table)


_COLUMNS = ("policy", "n", "final gain", "mean gain", "restarts", "repeated", "duplicates", "proposals", "measurements")
_WIDTHS = (9, 4, 23, 23, 18, 18, 18, 18, 14)


def _show(table) -> None:
    print("Time ratios to the baseline, measured again; mean gain is over the whole budget. 95 % bootstrap intervals.")
    _row(_COLUMNS)
    for row in table.rows:
        gains = [_told(each, 3) for each in (row.final, row.area)]
        counts = [_told(each, 1) for each in (row.restarts, row.repeated, row.duplicates, row.proposals)]
        _row((row.policy, str(row.campaigns), *gains, *counts, f"{row.spent.mean:.1f}"))
    for each in table.against:
        what = "final gain" if each.figure == "final" else "mean gain"
        tested = f"p = {each.p:.2g}, {each.holm:.2g} after Holm"
        print(f"{each.b} over {each.a}, {what}: {_told(each.ratio, 4)}, {tested}")


def _row(cells) -> None:
    print("".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip())


def _told(found, digits: int) -> str:
    return f"{found.mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
