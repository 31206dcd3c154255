"""What can be seen of a kernel on the CPU: hardware counters of `perf stat` where it has them, else wall time; and the
time of ATen's own operations. The kernel runs in a jail; what it is seen to do is evidence for a plan, never a verdict.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from atrex.agents.jail import Jail, JailError, Terms
from atrex.errors import UserError
from atrex.hardware.cache import usable_cpus
from atrex.hardware.detect import describe
from atrex.optimize.ask import sha256
from atrex.problems.model import Problem, Shape
from atrex.profiling.evidence import Evidence, ProfiledKernel

EVENTS = ("cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses")
_PROGRAM = Path(__file__).with_name("cpu_forward.py")
_ATTACH_S, _OPERATIONS = 0.3, 12


def look_cpu(source: Path, problem: Problem, shape: Shape, dsl: str, patience: float, seed: int = 1) -> Evidence:
    """A forward of `source` on the CPU. Figures: ``atrex.forward_us``, ``atrex.aten_us`` (own time of all ATen
    operations), ``atrex.aten_share``; a forward's ``perf.*`` counts and ``atrex.instructions_per_cycle``.

    Raises UserError where the kernel does not run in the jail, or says nothing that can be read.
    """
    content = source.read_bytes()
    with tempfile.TemporaryDirectory(prefix="atrex-look-") as root, Jail(Path(root), Terms()) as jail:
        (jail.workspace / "candidate.py").write_bytes(content)
        (jail.home / _PROGRAM.name).write_bytes(_PROGRAM.read_bytes())
        order = {"init_kwargs": dict(shape.init_kwargs), "mutates": list(problem.metadata.mutates)}
        (jail.workspace / "order.json").write_text(json.dumps(order))
        torch.save(problem.make_inputs(shape, seed, "cpu"), jail.workspace / "inputs.pt")
        env = {"OMP_NUM_THREADS": str(usable_cpus()), "PYTHONDONTWRITEBYTECODE": "1"}
        deadline = time.monotonic() + patience
        try:
            jail.start([sys.executable, str(jail.home / _PROGRAM.name)], env, talk=True)
            lines = jail.lines(deadline)
            first = _said(lines)
            wall, aten = float(first["wall_us"]), {str(k): float(v) for k, v in first["aten"].items()}
            counts, missing, tool = _counted(jail, lines, deadline)
        except (JailError, TimeoutError, BrokenPipeError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{source}: cannot be looked at on the CPU ({error or 'no answer in time'})") from None
    own = sum(aten.values())
    counters = {"atrex.forward_us": wall, "atrex.aten_us": own, "atrex.aten_share": min(1.0, own / wall)} | counts
    first_of = sorted(aten, key=aten.get, reverse=True)[:_OPERATIONS]
    about = describe("cpu")
    return Evidence(
        tool=f"{tool} and ATen self time", tool_version=f"(torch {torch.__version__})",
        command=f"{_PROGRAM.name} {problem.operator} {shape.id}",
        date=datetime.now(UTC).isoformat(timespec="seconds"), device=about.name, chip=about.chip, arch=about.arch,
        dsl=dsl, candidate=source.name, candidate_sha256=sha256(content), operator=problem.operator, shape=shape.id,
        kernel=ProfiledKernel(name="forward", index=0, us=wall),
        kernels=[ProfiledKernel(name=name, index=i, us=aten[name]) for i, name in enumerate(first_of)],
        counters=counters, missing=sorted(missing), note="" if counts else "perf stat has no hardware counters here",
    )  # fmt: skip


def _said(lines: Iterator[tuple[str, str]]) -> dict:
    """The next line of JSON that is printed; ValueError with what was said instead."""
    other = ""
    for stream, line in lines:
        if stream == "out" and line.startswith("{"):
            return json.loads(line)
        other = line or other
    raise ValueError(" ".join(other.split())[:200])


def _counted(jail: Jail, lines: Iterator[tuple[str, str]], deadline: float) -> tuple[dict[str, float], list[str], str]:
    """Counts a forward, the events without a counter, and what saw it: perf, attached from outside, or the clock."""
    perf = shutil.which("perf")
    if perf is None or not _has_counters(perf):
        return {}, [f"perf.{event}" for event in EVENTS], "wall time"
    pids = ",".join(map(str, jail.pids))
    command = [perf, "stat", "-x,", "-e", ",".join(EVENTS), "-p", pids]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as watching:
        time.sleep(_ATTACH_S)
        jail.send(b"loop\n", deadline)
        calls = float(_said(lines)["calls"])
        watching.send_signal(signal.SIGINT)
        try:
            _, printed = watching.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            watching.kill()
            printed = ""
    totals = read_counts(printed)
    counts = {f"perf.{event}": total / calls for event, total in totals.items()}
    if totals.get("cycles") and "instructions" in totals:
        counts["atrex.instructions_per_cycle"] = totals["instructions"] / totals["cycles"]
    return counts, [f"perf.{event}" for event in EVENTS if event not in totals], "perf stat" if counts else "wall time"


def read_counts(printed: str) -> dict[str, float]:
    """Totals by event of `perf stat -x,`; an event that was not counted is absent. Suffixes such as :u are dropped."""
    found: dict[str, float] = {}
    for line in printed.splitlines():
        fields = line.split(",")
        event = fields[2].partition(":")[0] if len(fields) > 2 else ""
        if event in EVENTS:
            try:
                found[event] = float(fields[0])
            except ValueError:  # <not supported>, <not counted>
                continue
    return found


def _has_counters(perf: str) -> bool:
    try:
        done = subprocess.run(
            [perf, "stat", "-x,", "-e", "cycles,instructions", "true"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return set(read_counts(done.stderr)) == {"cycles", "instructions"}
