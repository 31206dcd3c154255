"""Many requests in a row to `atrex serve-judge`: do memory, descriptors and files stay flat, and how many a minute.

    python benchmarks/serve_judge.py --device cpu --requests 1000 --out results/serve-judge-cpu.json

Every request is another candidate (its text differs in a comment), judged on one small unit with one seed and 20 timed
calls. Counted are the service, its judge and zygote: resident memory and open descriptors of each, how many processes
there are, and what lies in the judge's scratch folder.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from atrex.evaluate.run import device_name, versions
from atrex.evaluate.rundir import now
from atrex.evaluate.setup import resolve_device

CANDIDATE = Path(__file__).parents[1] / "examples" / "candidates" / "torch" / "rms_norm.py"
UNIT = ("rms_norm", "46")
WARM = 10  # requests before the first count: allocators and caches have then what they keep


def start(device: str) -> tuple[subprocess.Popen, str]:
    """A service on a free port, and its address."""
    command = [sys.executable, "-m", "atrex.cli.main", "serve-judge", "--device", device, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"http://\S+:\d+", line):
            return server, found[0]
    raise SystemExit(f"the service ended with status {server.wait()}")


def ask(address: str, source: str) -> dict:
    """The answer to one request."""
    body = {"candidate": source, "problem": UNIT[0], "shapes": UNIT[1], "quick": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/judge", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def count(server: psutil.Process) -> dict:
    """Memory in MiB and open descriptors by process, in all, and entries of the scratch folder."""
    time.sleep(1.0)  # the last worker is gone
    found = {}
    for process in [server, *server.children(recursive=True)]:
        found[_role(process, server)] = {
            "rss_mib": round(process.memory_info().rss / 2**20, 1),
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }
    scratch = [Path(p.cwd()) for p in server.children(recursive=True) if "atrex.evaluate.zygote" in p.cmdline()]
    return {
        "processes": found,
        "rss_mib": round(sum(p["rss_mib"] for p in found.values()), 1),
        "descriptors": sum(p["descriptors"] for p in found.values()),
        "scratch_entries": sum(len(list(folder.iterdir())) for folder in scratch),
    }


def _role(process: psutil.Process, server: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if process == server:
        return "service"
    if "atrex.evaluate.zygote" in command:
        return (
            "zygote" if "atrex.evaluate.zygote" not in " ".join(process.parent().cmdline()) else f"worker {process.pid}"
        )
    return "judge" if "spawn_main" in command else "resource tracker"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    source = CANDIDATE.read_text()
    server, address = start(args.device)
    counts, verdicts, seconds = {}, {}, []
    try:
        tree = psutil.Process(server.pid)
        marks = {min(WARM, args.requests): "start", args.requests // 2: "middle", args.requests: "end"}
        for i in range(1, args.requests + 1):
            began = time.monotonic()
            (unit,) = ask(address, f"{source}\n# {i}\n")["units"]
            seconds.append(time.monotonic() - began)
            status = "/".join(filter(None, [unit["verdict"]["status"], unit["verdict"].get("category")]))
            verdicts[status] = verdicts.get(status, 0) + 1
            if i in marks:
                counts[marks[i]] = {"requests": i, **count(tree)}
                print(f"{i}: {counts[marks[i]]}", flush=True)
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            health = json.load(answer)
    finally:
        server.send_signal(signal.SIGINT)
        server.stderr.close()
        exit_status = server.wait(60)
    record = {
        "what": "requests in a row to atrex serve-judge, each another candidate on one unit",
        "command": "python benchmarks/serve_judge.py " + " ".join(sys.argv[1:]),
        "created": now(),
        "device": args.device,
        "device_name": device_name(resolve_device(args.device)),
        "versions": versions(),
        "unit": "/".join(UNIT),
        "requests": args.requests,
        "verdicts": verdicts,
        "requests_per_minute": round(60 * len(seconds) / sum(seconds), 1),
        "median_seconds": round(sorted(seconds)[len(seconds) // 2], 3),
        "slowest_seconds": round(max(seconds), 3),
        "judges_restarted": health["judges_restarted"],
        "exit_status_after_ctrl_c": exit_status,
        "counts": counts,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
