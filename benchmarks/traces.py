"""Measure the trace importer: how much of real traces it explains, and how fast it is beside others.

    python benchmarks/traces.py shares ../shared/traces --out results/traces-shares.json
    python benchmarks/traces.py speed --hta HTA_PYTHON --tracelens TRACELENS_PYTHON --out results/traces-speed.json

`shares` imports every file of a folder and prints, per file, the shares of device time that are linked, mapped and
labelled, the joins of graphs, and the agreement with the published table of operators beside them. `speed` writes a
synthetic Kineto file and imports it in fresh processes, alternating with HolisticTraceAnalysis and TraceLens in
environments of their own (the interpreters given); wall time is from start to exit, memory the peak of the resident
sizes of the whole process tree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def record(what: str, arguments: list[str]) -> dict[str, Any]:
    """What every record begins with."""
    packages = ("atrex", "polars", "msgspec", "numpy")
    return {
        "what": what,
        "command": "python benchmarks/traces.py " + " ".join(arguments),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def shares(folder: Path) -> dict[str, Any]:
    """Every trace under `folder`: what is explained of it."""
    from tests.traces import gold

    from atrex.traces import dataset, importer
    from atrex.traces.families.match import Matcher
    from atrex.traces.pipeline import Options

    files = sorted(p for kind in ("kineto", "nsys", "rocm") for p in (folder / kind).glob("*") if p.is_file())
    found: dict[str, Any] = {"files": {}}
    with tempfile.TemporaryDirectory() as out:
        for result in importer.import_files(files, Path(out) / "data", Options()):
            name = f"{result.source.parent.name}/{result.source.name}"
            if result.summary is None:
                found["files"][name] = {"error": result.error}
                continue
            about = result.summary
            kept = ("format", "dialect", "vendor", "framework", "role", "records", "shares", "links", "phases",
                    "phase_sources", "graphs", "overlapping")  # fmt: skip
            found["files"][name] = {key: about[key] for key in kept} | {
                "device_ms": {k: v / 1e6 for k, v in about["device_ns"].items()}
            }
        serving = dataset.open_dataset(Path(out) / "data").serving()
    found["serving"] = len(serving)
    matcher = Matcher()
    table = folder / "gold" / "sglang_qwen3_30b_a3b_diff_stats.csv"
    if table.exists():
        share, rows = gold.agreement(table, lambda row: matcher.classify(row["name"]).family)
        found["gold"] = {"rows": rows, "share_of_kernel_time": share}
    return found


def print_shares(found: dict[str, Any]) -> None:
    print(f"{'file':58} {'device ms':>9} {'mapped':>7} {'operators':>9} {'linked':>7} {'phase':>7}  graphs joined")
    for name, about in found["files"].items():
        if "error" in about:
            print(f"{name:58} {about['error']}")
            continue
        s = about["shares"]
        cells = ["-" if s[k] is None else f"{s[k]:.2%}" for k in ("mapped", "operators", "linked", "phase")]
        graphs = about["graphs"]
        joined = f"{graphs['joined']}/{graphs['replays']}" if graphs["replays"] else ""
        print(f"{name:58} {about['device_ms']['exclusive']:9.3f} {cells[0]:>7} {cells[1]:>9} {cells[2]:>7} "
              f"{cells[3]:>7}  {joined}")  # fmt: skip
    if "gold" in found:
        table = found["gold"]
        print(f"published table: {table['share_of_kernel_time']:.2%} of kernel time over {table['rows']} rows")


_HTA = """
import os, sys
from hta.trace_analysis import TraceAnalysis
path = sys.argv[1]
trace = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
print(len(trace.t.get_trace(0)))
"""
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
tree = TreePerfAnalyzer.from_file(sys.argv[1], add_python_func=sys.argv[2] == "frames").tree
print(len(tree.events))
"""


def watched(command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command: seconds from start to exit, its processes' CPU seconds, peak resident bytes of the tree."""
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    peak, ended = [0], threading.Event()

    def watch() -> None:
        root = psutil.Process(process.pid)
        while not ended.wait(0.02):
            total = 0
            for one in [root, *_children(root)]:
                try:
                    total += one.memory_info().rss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - started
    ended.set()
    watcher.join()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{output[-2000:]}")
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak[0], "load": os.getloadavg()[0]}


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def speed(events: int, times: int, hta: str | None, tracelens: str | None, source: str | None) -> dict[str, Any]:
    """Import one synthetic file `times` times with each tool, in turn."""
    from tests.traces import big

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.json"
        counts = big.write(path, events)
        size = path.stat().st_size
        out = iter(Path(folder) / f"data{i}" for i in range(100))
        env = os.environ | ({"PYTHONPATH": source} if source else {})
        tools: dict[str, Callable[[], dict[str, Any]]] = {
            "atrex": lambda: watched(
                [sys.executable, "-m", "atrex.cli.main", "trace", "import", str(path), "--out", str(next(out))]
            )
        }
        if hta:
            tools["HolisticTraceAnalysis"] = lambda: watched([hta, "-c", _HTA, str(path)])
        if tracelens:
            for kind in ("plain", "frames"):
                tools[f"TraceLens ({kind})"] = lambda kind=kind: watched(
                    [tracelens, "-c", _TRACELENS, str(path), kind], env
                )
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in tools}
        for _ in range(times):
            for name, run in tools.items():
                runs[name].append(run())
                last = runs[name][-1]
                print(f"{name:24} {last['seconds']:7.2f} s {last['cpu_seconds']:7.2f} s CPU "
                      f"{last['peak_bytes'] / 1e6:7.0f} MB  load {last['load']:.1f}", flush=True)  # fmt: skip
    medians = {name: statistics.median(r["seconds"] for r in found) for name, found in runs.items()}
    return {
        "bytes": size,
        "events": sum(counts.values()) if "events" not in counts else counts["events"],
        "counts": counts,
        "runs": runs,
        "median_seconds": medians,
        "median_cpu_seconds": {n: statistics.median(r["cpu_seconds"] for r in found) for n, found in runs.items()},
        "megabytes_per_second": size / 1e6 / medians["atrex"],
        "peak_megabytes": {name: max(r["peak_bytes"] for r in found) / 1e6 for name, found in runs.items()},
        "times_faster": {name: medians[name] / medians["atrex"] for name in medians if name != "atrex"},
        "others": _versions(hta, tracelens, source),
    }


def _versions(hta: str | None, tracelens: str | None, source: str | None) -> dict[str, str]:
    found = {}
    if hta:
        code = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
        found["HolisticTraceAnalysis"] = subprocess.check_output([hta, "-c", code], text=True).strip()
    if tracelens and source:
        found["TraceLens"] = f"source tree {Path(source).name}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("shares")
    one.add_argument("folder", type=Path)
    two = commands.add_parser("speed")
    two.add_argument("--events", type=int, default=1_300_000)
    two.add_argument("--times", type=int, default=3)
    two.add_argument("--hta", help="an interpreter with HolisticTraceAnalysis")
    two.add_argument("--tracelens", help="an interpreter with TraceLens, or with what it needs")
    two.add_argument("--tracelens-source", help="a source tree of TraceLens, where it is not installed")
    for command in (one, two):
        command.add_argument("--out", type=Path, help="where to write the record")
    chosen = parser.parse_args()
    if chosen.command == "shares":
        found = record("what the importer explains of real traces", sys.argv[1:]) | shares(chosen.folder)
        print_shares(found)
    else:
        found = record("import of one Kineto file, beside other tools", _public(sys.argv[1:])) | speed(
            chosen.events, chosen.times, chosen.hta, chosen.tracelens, chosen.tracelens_source
        )
        print(
            json.dumps({k: found[k] for k in ("bytes", "median_seconds", "times_faster", "peak_megabytes")}, indent=1)
        )
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


def _public(arguments: list[str]) -> list[str]:
    """The command line without the paths of this machine's interpreters."""
    return [Path(a).name if a.startswith("/") else a for a in arguments]


if __name__ == "__main__":
    main()
