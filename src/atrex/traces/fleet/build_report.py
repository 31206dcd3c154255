"""What `atrex suite build` says: operators with coverage, what is kept out, and what the suite has no problem for."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

SHOWN = 12


def print_build(document: dict[str, Any], console: Console) -> None:
    """Tables of what `atrex.traces.fleet.build.document` gives."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    for title in ("weight", "shapes", "covered", "profiles"):
        table.add_column(title, justify="right")
    table.add_column("dimensions")
    for operator, about in document["operators"].items():
        sources = ", ".join(f"{n} {source}" for source, n in about["sources"].items())
        table.add_row(operator, f"{about['weight']:.2%}", str(about["shapes"]), f"{about['covered']:.1%}",
                      str(about["profiles"]), sources)  # fmt: skip
    console.print(table)
    shapes = sum(about["shapes"] for about in document["operators"].values())
    covered = document["coverage"]
    console.print(
        f"{len(document['operators'])} operators, {shapes} shapes: their buckets hold {covered['of_operators']:.1%} of "
        f"the device time of the suite's operators (asked: {covered['asked']:.0%} of what has a shape)",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    for out in document["kept_out"][:SHOWN]:
        kwargs = " ".join(f"{k}={v}" for k, v in {**out["init_kwargs"], **out["input_kwargs"]}.items())
        under = (
            f"{out['traced_us']:.4g} us on {out['chip']}, roofline {out['roofline_us']:.4g} us: "
            if "chip" in out
            else ""
        )
        console.print(f"kept out: {out['operator']} {kwargs}: {under}{out['why']}", markup=False, soft_wrap=True)
    if len(document["kept_out"]) > SHOWN:
        console.print(f"... {len(document['kept_out']) - SHOWN} more kept out, in build.json", markup=False)
    for each in document["without_shapes"]:
        console.print(
            f"without a shape: {each['of_operator']:.1%} of {each['operator']}, {each['share']:.2%} of all device "
            f"time: {each['reasons'][0]}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    beyond = document["beyond_the_suite"]
    if beyond:
        shown = ", ".join(f"{f['family']} {f['score']:.1%}" for f in beyond[:SHOWN])
        console.print(f"no operator yet: {shown}", markup=False, soft_wrap=True)
    for note in document["weights"]["notes"]:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
