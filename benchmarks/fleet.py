"""From traces to a judged kernel: fleet -> weights -> built suite -> validated -> evaluated candidates -> headroom.

    python benchmarks/fleet.py ../shared/traces/kineto --out results/fleet-h200.json
    python benchmarks/fleet.py ../shared/traces/kineto --device cuda:0 --candidates examples/candidates/triton

Where the traces are on another machine than the device, in three steps: build here, judge there, and go on here.

    python benchmarks/fleet.py ../shared/traces/kineto --work runs/fleet --build
    atrex suite validate runs/fleet/suite --device cuda:0 --json >validated.json
    atrex eval examples/candidates/triton --suite runs/fleet/suite --device cuda:0 --out RUN
    python benchmarks/fleet.py ../shared/traces/kineto --work runs/fleet --run RUN --validated validated.json

The fleet is made up of traces recorded on an H200: a dense model (eager prefill and decode, and replays of its graph
with their capture) and a mixture of experts, with card-hours that are stated here and stand for nothing. Everything
runs through the command line, in processes of their own; the record keeps what each step said and how long it took.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
APPLICATIONS = {
    "dense": {
        "card_hours": 300,
        "traces": ["h200_transformers_qwen3_dense.json.gz", "h200_transformers_qwen3_graph_*.json.gz",
                   "h200_transformers_qwen3_eager_decode.json.gz"],
    },
    "experts": {"card_hours": 100, "traces": ["h200_transformers_qwen3_moe.json.gz"]},
}  # fmt: skip


class Steps:
    """Runs commands of `atrex` and keeps how long each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
        begun = time.monotonic()
        command = [sys.executable, "-m", "atrex.cli.main", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode not in codes:
            sys.exit(f"atrex {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr[-3000:]}")
        self.seconds[name] = round(time.monotonic() - begun, 2)
        print(f"{name}: {self.seconds[name]} s", file=sys.stderr)
        return done.stdout


def measure(asked: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """Every step on the traces of a folder; what the record keeps. None where the suite was only to be built."""
    steps = Steps()
    applications = {
        name: {**about, "traces": [str(asked.traces.resolve() / pattern) for pattern in about["traces"]]}
        for name, about in APPLICATIONS.items()
    }
    fleet, suite, run = folder / "fleet.yaml", folder / "suite", asked.run or folder / "run"
    fleet.write_text(yaml.safe_dump({"applications": applications}, sort_keys=False))
    common = ("--fleet", fleet, "--data", folder / "data", "--json")
    weights = json.loads(steps.run("weights", "suite", "weights", *common, "--out", folder / "weights.json"))
    if asked.run is None:
        build = ("suite", "build", *common, "--out", suite, *(["--redact"] if asked.redact else []))
        (folder / "built.json").write_text(steps.run("build", *build))
    if asked.build:
        return None
    built = json.loads((folder / "built.json").read_text())
    if asked.run is None:
        checked = json.loads(steps.run("validate", "suite", "validate", suite, "--json", "--device", asked.device))
        evaluate = ("eval", asked.candidates, "--suite", suite, "--device", asked.device, "--out", run)
        steps.run("eval", *evaluate, codes=(0, 1))
    else:
        checked = json.loads(asked.validated.read_text())
    score = json.loads(steps.run("score", "score", run, "--json", codes=(0, 1)))
    weighted = ("score", run, "--weights", folder / "weights.json", "--json")
    own = json.loads(steps.run("score --weights", *weighted, codes=(0, 1)))
    asked_for = ("trace", "headroom", folder / "data", "--fleet", fleet, "--run", run, "--json")
    headroom = json.loads(steps.run("headroom", *asked_for))
    candidate = score["runs"][0]["candidates"][0]
    return {
        "applications": APPLICATIONS,
        "weights": weights["weights"],
        "weighting": {key: weights[key] for key in ("time", "mixed", "min_share", "applications", "notes")},
        "built": {key: built[key] for key in ("coverage", "operators", "kept_out", "without_shapes",
                                              "beyond_the_suite")},
        "validated": checked["summary"],
        "evaluated": {
            "device": candidate["device"], "chip": candidate["chip"],
            "summary": {key: candidate["summary"][key] for key in ("s_agg", "s_agg_inside", "coverage", "shapes_run",
                                                                   "failed", "errors")},
            "operators": {o["operator"]: {key: o[key] for key in ("shapes", "run", "correct", "s", "attainable")}
                          for o in candidate["operators"]},
            "s_agg_by_suite_weights": own["runs"][0]["candidates"][0]["summary"]["s_agg"],
        },
        "headroom": headroom,
        "seconds": steps.seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="the folder of the H200 traces")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--candidates", type=Path, default=ROOT / "examples" / "candidates" / "cpp")
    parser.add_argument("--redact", action="store_true")
    parser.add_argument("--work", type=Path, help="a folder that keeps data, suite and run; default: one that goes")
    parser.add_argument("--build", action="store_true", help="build the suite and stop")
    parser.add_argument("--run", type=Path, help="a run of the suite in --work from elsewhere; needs --validated")
    parser.add_argument("--validated", type=Path, help="what `atrex suite validate --json` said of it there")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if (asked.build or asked.run) and not asked.work or bool(asked.run) != bool(asked.validated):
        parser.error("--build and --run need --work, and --run needs --validated")
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measured = measure(asked, folder)
    if measured is None:
        print(f"built: {asked.work / 'suite'}")
        return
    found = {
        "what": "fleet -> weights -> built suite -> validated -> evaluated candidates -> headroom, on H200 traces",
        "command": "python benchmarks/fleet.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_at_start": round(os.getloadavg()[0], 1),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("atrex", "torch", "polars")}},
        **measured,
    }
    text = json.dumps(found, indent=1) + "\n"
    if asked.out is None:
        print(text, end="")
    else:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
