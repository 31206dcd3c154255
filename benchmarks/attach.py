"""Attach to busy processes many times: does any of them crash, hang or compute something else.

    python benchmarks/attach.py --out results/attach-cpu.json
    python benchmarks/attach.py --python /usr/bin/python3.12 --attachments 200 --out FILE

Every program of tests/traces/record/programs.py repeats a piece of work whose result must stay the same: allocations,
JSON and regular expressions, vector and scalar arithmetic, threads that fight for the interpreter, a timer's signals,
short sleeps, waits for pipes and other threads, child processes, pending calls of its own. Each is attached to
`--attachments` times, then `--kills` recorders that attach on and on are killed (SIGKILL) at random moments, and it is
attached to once more. Last, a loop of torch operators is recorded `--recordings` times. An attachment counts when the
text has run. `paused` is how long the main thread stood still, `until_run` how long it took until the text had run.
Of further interpreters (`--python`, repeatable) the programs that need only the standard library are taken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.traces.record.running import program, recorder  # noqa: E402

from atrex.traces.record import inject, target  # noqa: E402
from atrex.traces.record.attach import record_pid  # noqa: E402
from atrex.traces.record.window import Window  # noqa: E402

PROGRAMS = ("allocations", "text", "vectors", "floats", "threads", "signals", "pending", "sleeps", "waits", "children",
            "nothing")  # fmt: skip
ELSEWHERE = ("allocations", "text", "threads", "signals", "pending")


def spread(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: median, 99th percentile, largest."""
    ordered = sorted(seconds)
    at = {"median": statistics.median(ordered), "p99": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}
    return {f"{name}_ms": round(1e3 * value, 3) for name, value in at.items()}


def resident(pid: int) -> float:
    """MiB."""
    return round(int(target.status(pid)["VmRSS"].split()[0]) / 1024, 1)


def attach(name: str, times: int, kills: int, python: str) -> dict[str, Any]:
    """One program. Raises AssertionError when it crashes, hangs for half a minute or computes something else."""
    paused, until_run, tries, exact, chance = [], [], 0, 0, random.Random(name)
    with program(name, python) as running:
        running.attach()
        before = resident(running.pid)
        for _ in range(times):
            began = time.monotonic()
            done = running.attach()
            until_run.append(time.monotonic() - began)
            paused.append(done.paused_s)
            tries += done.tries - 1
            exact += done.exact
        after = resident(running.pid)
        for _ in range(kills):
            pid = recorder(running.where, _on_and_on)
            time.sleep(chance.uniform(0.0, 0.02))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        running.attach()
        result = running.finish()
    return {
        "attachments": times, "crashes": 0, "hangs": 0, "put_back_exactly": exact, "further_tries": tries,
        "recorders_killed": kills, "rounds_with_the_same_result": result["rounds"], "paused": spread(paused),
        "until_run": spread(until_run), "resident_mib": [before, after],
    }  # fmt: skip


def _on_and_on(where: target.Target) -> None:
    while True:
        inject.release(where, inject.inject(where, "ack()").region)


def record(times: int) -> dict[str, Any]:
    """A loop of torch operators, recorded again and again."""
    took, paused = [], []
    with tempfile.TemporaryDirectory() as folder, program("product", file="models.py") as running:
        record_pid(running.pid, Window(0.05), Path(folder) / "trace.json")
        before = resident(running.pid)
        for _ in range(times):
            began = time.monotonic()
            found = record_pid(running.pid, Window(0.05), Path(folder) / "trace.json")
            took.append(time.monotonic() - began)
            paused.append(found.details["paused_s"])
            events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
            assert any(e["name"] == "aten::mm" and e["args"]["Input Dims"][0] == [32, 32] for e in events)
        after = resident(running.pid)
        result = running.finish()
        assert result["changed"] == [], result
    return {
        "recordings": times, "crashes": 0, "hangs": 0, "window_s": 0.05, "all_with_operators_and_shapes": True,
        "turns_with_the_same_result": result["turns"], "whole_recording": spread(took), "paused": spread(paused),
        "resident_mib": [before, after],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attachments", type=int, default=1000, help="to each program")
    parser.add_argument("--kills", type=int, default=100, help="recorders killed per program")
    parser.add_argument("--recordings", type=int, default=200)
    parser.add_argument("--python", action="append", default=[], help="a further interpreter to attach to")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "what": "attachments to busy processes, with recorders killed at random moments",
        "command": "python benchmarks/attach.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "load_before": round(os.getloadavg()[0], 1),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("atrex", "torch", "numpy")}},
        "programs": {},
    }
    for python in (sys.executable, *options.python):
        with program("nothing", python) as running:
            label = f"CPython {'.'.join(map(str, running.where.version))}"
            if not any("libpython" in m.path for m in target.mappings(running.pid)):
                label += " without libpython"
        for name in PROGRAMS if python == sys.executable else ELSEWHERE:
            key = f"{name}, {label}"
            found["programs"][key] = attach(name, options.attachments, options.kills, python)
            print(key, json.dumps(found["programs"][key]), flush=True)
    if options.recordings:
        found["torch"] = record(options.recordings)
        print("torch", json.dumps(found["torch"]), flush=True)
    found["attachments"] = sum(p["attachments"] for p in found["programs"].values())
    found["recorders_killed"] = sum(p["recorders_killed"] for p in found["programs"].values())
    found["load_after"] = round(os.getloadavg()[0], 1)
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{found['attachments']} attachments, {found['recorders_killed']} recorders killed: no crash, no hang")


if __name__ == "__main__":
    main()
