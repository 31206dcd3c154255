"""All operators through `atrex generate` with a scripted agent, interrupted twice: is anything lost, what does it cost?

    python benchmarks/generate_dry_run.py --out results/generate-dry-run.json

The agent is a shell script that copies the reference to where the candidate belongs. The run is ended by Ctrl-C after
some problems, by SIGKILL after some more, each time with problems under way, and resumed to its end. A second run,
undisturbed and one problem at a time, gives the seconds: those of a problem less those that its agent itself counted
are what workspace, jail, transcript and record cost. On a machine that has other work to do, look at the CPU's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from atrex.evaluate.candidates import resolve
from atrex.evaluate.run import device_name, versions
from atrex.evaluate.rundir import now
from atrex.generate.records import RECORDS, Generated, load_records
from atrex.generate.transcript import read
from atrex.problems.load import load_suite

SCRIPT = """#!/bin/sh
date +%s.%N
sleep "${PAUSE}"
cp reference.py candidate.py
date +%s.%N
"""
SPELL = 0.2  # seconds that the agent works, where it is to be interrupted at work
ENDINGS = ((8, signal.SIGINT), (16, signal.SIGKILL))  # records after which the run is ended, and how


def agent(folder: Path, pause: float) -> Path:
    """Write the scripted agent, which takes `pause` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "agent.sh"
    script.write_text(SCRIPT.replace("${PAUSE}", str(pause)))
    script.chmod(0o755)
    return script


def start(out: Path, script: Path, jobs: int, resume: bool = False) -> subprocess.Popen[str]:
    """`atrex generate` on all operators."""
    command = [sys.executable, "-m", "atrex.cli.main", "generate", "--agent", f"command:{script}", "--dsl", "cpp"]
    command += ["--all", "--jobs", str(jobs), "--out", str(out), "--json", *(["--resume"] if resume else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(out: Path) -> list[str]:
    """Whole lines of the records that there are by now."""
    path = out / RECORDS
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def end_after(process: subprocess.Popen[str], out: Path, count: int, how: signal.Signals) -> int:
    """Send the signal once there are `count` records. The exit status. Raises SystemExit when it ends before."""
    while len(lines(out)) < count:
        if process.poll() is not None:
            raise SystemExit(f"ended by itself with status {process.returncode}: {process.stderr.read()[-500:]}")
        time.sleep(0.02)
    process.send_signal(how)
    process.communicate(timeout=120)
    return process.returncode


def interrupted(out: Path, script: Path, jobs: int) -> list[dict]:
    """A run that is ended as ENDINGS say and then let finish: what each part of it found done, did, and ended with."""
    parts, resume = [], False
    for count, how in (*ENDINGS, (None, None)):
        before = lines(out)
        process = start(out, script, jobs, resume)
        if how is None:
            process.communicate(timeout=1800)
        else:
            end_after(process, out, count, how)
        after = [line for line in lines(out) if line.endswith("\n")]
        parts.append(
            {
                "ended_by": how.name if how else "itself",
                "exit": process.returncode,
                "records_before": len(before),
                "records_after": len(after),
                "earlier_records_unchanged": after[: len(before)] == before,
            }
        )
        resume = True
    return parts


def lost(out: Path) -> list[str]:
    """What a finished run should hold and does not: empty where nothing was lost."""
    operators = list(load_suite().problems)
    records: dict[str, Generated] = {record.operator: record for record in load_records(out)}
    candidates = {each.operator: each.source for each in resolve([str(out)], operators, None)}
    found = [f"{len(lines(out))} records of {len(operators)} problems"] if len(lines(out)) != len(operators) else []
    for operator in operators:
        record, source = records.get(operator), candidates.get(operator, "")
        if record is None:
            found.append(f"{operator}: no record")
        elif record.ended != "done" or record.candidate_sha256 != hashlib.sha256(source.encode()).hexdigest():
            found.append(f"{operator}: {record.ended}, its candidate is not the one that was left")
        elif not _counted(out, operator):
            found.append(f"{operator}: its transcript does not reach its end")
    if left := os.listdir(out / "workspaces"):
        found.append(f"workspaces left behind: {', '.join(sorted(left))}")
    return found


def _counted(out: Path, operator: str) -> float | None:
    """Seconds that the agent counted of its own."""
    events = [event for _, event in read(out / "transcripts" / f"{operator}-0.jsonl")]
    said = [float(event.text) for event in events if event.kind == "output" and event.stream == "out"]
    return said[1] - said[0] if len(said) == 2 and events[-1].kind == "ended" else None


def cost(out: Path, script: Path) -> dict:
    """What an undisturbed run costs, one problem at a time.

    A run that is resumed when nothing is left to do is what every run costs; the rest is the problems'.
    """
    whole, start_up = _time(out, script, resume=False), _time(out, script, resume=True)
    records = load_records(out)
    overhead = sorted(record.seconds - _counted(out, record.operator) for record in records)
    return {
        "problems": len(records),
        "start_up": start_up,
        "whole": whole,
        "cpu_seconds_per_problem": round((whole["cpu_seconds"] - start_up["cpu_seconds"]) / len(records), 3),
        "overhead_seconds_per_problem": {
            "median": round(statistics.median(overhead), 3),
            "least": round(overhead[0], 3),
            "p90": round(overhead[int(0.9 * (len(overhead) - 1))], 3),
            "most": round(overhead[-1], 3),
        },
    }


def _time(out: Path, script: Path, resume: bool) -> dict[str, float]:
    """Seconds that a run takes: by the clock, and of the CPU with everything that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = start(out, script, 1, resume)
    _, said = process.communicate(timeout=1800)
    if process.returncode:
        raise SystemExit(f"ended with status {process.returncode}: {said[-500:]}")
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="problems at a time in the run that is interrupted")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        parts = interrupted(Path(scratch) / "interrupted", agent(Path(scratch) / "slow", SPELL), asked.jobs)
        missing = lost(Path(scratch) / "interrupted")
        load = os.getloadavg()[0]
        undisturbed = cost(Path(scratch) / "undisturbed", agent(Path(scratch) / "quick", 0.0))
        held = load_records(Path(scratch) / "undisturbed")[0].confinement
    record = {
        "what": "all operators through atrex generate with a scripted agent, interrupted and resumed",
        "command": f"python benchmarks/generate_dry_run.py --out {asked.out} --jobs {asked.jobs}",
        "created": now(),
        "device_name": device_name(torch.device("cpu")),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "confinement": held,
        "interrupted": {"jobs": asked.jobs, "agent_seconds": SPELL, "parts": parts, "lost": missing},
        "undisturbed": {"jobs": 1, "load_before": round(load, 2)} | undisturbed,
    }
    asked.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    if missing:
        raise SystemExit("something was lost")


if __name__ == "__main__":
    main()
