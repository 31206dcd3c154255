"""`atrex trace record`: a trace of what runs, of what is started, or of a serving engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError


def record(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The trace; .json or .json.gz.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD...", help="A Python program to start under the profiler.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", help="A running Python process; no restart, no code in it.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="http://HOST:PORT", help="A vLLM or SGLang server, by its own profiler."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", help="The window; default: 5, with --steps at most 60.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="End it after N steps of the model.")
    ] = None,
    stack: Annotated[
        bool, typer.Option("--stack", help="Python frames and module names too: several times the cost.")
    ] = False,
    delay: Annotated[float, typer.Option("--delay", metavar="S", help="With CMD: begin S seconds after torch.")] = 0.0,
    patience: Annotated[
        float, typer.Option("--patience", metavar="S", help="With --pid: wait so long for a safe point.")
    ] = 60.0,
    trace_dir: Annotated[
        Path | None,
        typer.Option("--trace-dir", metavar="DIR", help="With --url: where the engine writes, seen from here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Record a window of a running process, of a program to start, or of a serving engine.

    The exit status is 1 where an engine recorded but its trace cannot be reached from here.
    """
    from atrex.traces.record.window import Recorded, Window, check_out

    if (pid is not None) + (url is not None) + bool(command) != 1:
        raise UserError("expected one of --pid PID, --url http://host:port and -- CMD...")
    window = Window.of(seconds, steps, stack)
    check_out(out)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        found: Recorded
        if pid is not None:
            from atrex.traces.record.attach import record_pid

            found = record_pid(pid, window, out, tell, patience)
        elif url is not None:
            from atrex.traces.record.engines import record_url

            found = record_url(url, window, out, tell, trace_dir)
        else:
            from atrex.traces.record.launch import record_command

            found = record_command(command or [], window, out, tell, delay)
    except KeyboardInterrupt:
        print("interrupted: nothing was recorded", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(found.document(), indent=2))
    else:
        for path in found.files:
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB{_what(found) if path == found.files[0] else ''}")
        for note in found.notes:
            print(f"note: {note}")
    if not found.files:
        raise typer.Exit(1)


def _what(found) -> str:
    parts = [] if found.seconds is None else [f"{found.seconds:.2f} s"]
    if found.steps is not None:
        parts.append(f"{found.steps} steps")
    if "writing_s" in found.details:
        parts.append(f"the program stood still for {found.details['writing_s']:.2f} s while its trace was written")
    return f", {', '.join(parts)}" if parts else ""
