"""`atrex profile`: what the official profiler says about a candidate's kernel."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError


def profile(
    candidate: Annotated[Path, typer.Argument(help="A .py file exposing Model. It runs with your rights, unconfined.")],
    shape: Annotated[str, typer.Option(help="Shape id.")],
    out: Annotated[Path, typer.Option(help="Where the evidence goes, as JSON; ncu's own report beside it.")],
    problem: Annotated[str | None, typer.Option(help="Operator; default: what the file is named after.")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="Regular expression on the kernel's name; default: the longest kernel.")
    ] = None,
    launch: Annotated[
        int | None, typer.Option(min=0, help="Which launch of that name inside one forward, from 0.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda:N.")] = "cuda:0",
    warmup: Annotated[int, typer.Option(min=1, help="Forwards before the one that is profiled.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds for everything.")] = 600.0,
    suite: Annotated[Path | None, typer.Option(help="A suite or problem folder; default: the shipped suite.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the evidence.")] = False,
) -> None:
    """Profile one forward of a candidate with ncu, after warm-up and with cold caches, for `atrex wiki advise`."""
    from atrex import dsls
    from atrex.evaluate.candidates import resolve
    from atrex.hardware.detect import describe, parse_device
    from atrex.problems.load import load_suite
    from atrex.profiling import collect, ncu

    loaded = load_suite(suite)
    found = resolve([str(candidate)], list(loaded.problems), problem)
    if len(found) > 1:
        raise UserError(f"{candidate}: {len(found)} candidates; expected one file")
    operator = loaded.problem(found[0].operator)
    one = operator.shape(shape)
    if parse_device(device)[0] == "cpu":
        raise UserError("--device cpu: ncu profiles NVIDIA GPUs only")
    about = describe(device)
    if not about.arch.startswith("sm_"):
        raise UserError(f"device {device}: {about.arch}: no profiler but ncu is supported yet")
    command = collect.forward_command(found[0].path, operator.operator, shape, device, warmup, suite)
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"profiling {operator.operator}/{shape} of {candidate} with ncu", file=sys.stderr)
    launches, missing = ncu.profile(command, out.with_suffix(".ncu-rep"), timeout)
    evidence = collect.evidence_of(
        launches, collect.choose(launches, kernel, launch), missing,
        tool_version=ncu.version(ncu.find_ncu()), command=["atrex", *sys.argv[1:]], device=about,
        candidate=str(candidate), source=found[0].source.encode(), operator=operator.operator, shape=shape,
        dsl=dsls.infer(found[0].source), work=operator.work(one), host=collect.host_us(command),
    )  # fmt: skip
    out.write_text(evidence.model_dump_json(indent=1) + "\n")
    if as_json:
        print(json.dumps(evidence.model_dump(), indent=1))
        return
    for row in evidence.kernels:
        mark = "*" if row.index == evidence.kernel.index else " "
        print(f"{mark} {row.index:3} {'-' if row.us is None else f'{row.us:9.2f} us'}  {row.name[:90]}")
    print(f"{len(evidence.counters)} counters of the marked kernel: {out}")
    if evidence.note:
        print(evidence.note)
