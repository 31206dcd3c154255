"""`atrex demo`: the main job end to end, on the CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the demo, a new one; default: runs/demo-<time>.")
    ] = None,
) -> None:
    """Show what Atrex does, on this machine's CPU: traces weighed, kernels judged, one made faster, a report (minutes).

    The commands are shown as they run, and can be run again in the folder that is left. Traces need atrex[traces], the
    report atrex[report], the campaign git; what is missing is left out.
    """
    from atrex.demo import demo_steps, run_demo

    started = time.monotonic()
    folder = out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    # Flushed, so that it stands before what the commands print where the output is a pipe.
    status = run_demo(folder, lambda text: print(text, flush=True), demo_steps())
    if status not in (0, 1):
        raise typer.Exit(status)
    print(f"==> done in {time.monotonic() - started:.0f} s; everything is in {folder}")
    raise typer.Exit(status)
