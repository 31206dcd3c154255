"""Measure the judge itself: pace, repeatability, floor, and device events against CUPTI spans.

    python benchmarks/judge.py --device cuda:0 --out results/judge-h200.json CANDIDATES_DIR

Runs the pace part as a fresh `atrex eval` process (what a user waits for), the rest in this process. One JSON record.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import resolve
from atrex.evaluate.plan import make_plan
from atrex.evaluate.run import device_name, versions
from atrex.evaluate.rundir import now
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import prepare, resolve_device
from atrex.evaluate.unit import UnitJudge
from atrex.problems.load import load_suite

# Two or more units per operator, from the launch floor to milliseconds.
PANEL = {
    "rms_norm": "0,9,15,27,32,47,53",
    "silu_and_mul": "0,1,7",
    "fused_add_rms_norm": "0,5,11",
    "moe_topk_gating_softmax": "0,7,9",
    "block_scaled_mm": "0,3",
    "paged_attention_decode": "0,3",
}


def pace(candidates: str, device: str, out: Path, names: list[str]) -> dict:
    """Wall clock of whole `atrex eval` commands, start-up included."""
    parts = {}
    for name in names:
        target = candidates if name == "all" else f"{candidates}/{name}.py"
        command = ["eval", target, "--device", device, "--seeds", "5", "--out", str(out / f"pace-{name}")]
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "atrex.cli.main", *command], capture_output=True, text=True)
        seconds = time.perf_counter() - started
        lines = (out / f"pace-{name}" / "units.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        units = [r for r in records if not r["held_out"]]
        parts[name] = {
            "command": "atrex " + " ".join(command[:-2]),
            "exit": done.returncode,
            "seconds": seconds,
            "units": len(units),
            "held_out": len(records) - len(units),
            "seconds_per_unit": seconds / len(units),
            "passed": sum(r["verdict"]["status"] == "passed" for r in units),
            "held_out_passed": sum(r["verdict"]["status"] == "passed" for r in records if r["held_out"]),
            "stderr_tail": done.stderr[-1500:] if done.returncode else "",
        }
        print(name, {k: v for k, v in parts[name].items() if k not in ("command", "stderr_tail")}, flush=True)
    return parts


def repeat(candidates: str, device: str, times: int) -> tuple[list[dict], dict]:
    """The panel in fresh workers, `times` times: the spread of each unit's median, and event against CUPTI."""
    seen: dict[tuple[str, str], list] = {}
    suite = load_suite()
    about: dict = {}
    for _ in range(times):
        setup = prepare(device, Seeds(), 1, Budgets())
        try:
            about = {"floor_us": setup.baseline.floor_us, "null_us": setup.baseline.null_us}
            about["round_trip_us"] = setup.baseline.round_trip_us
            for operator, shapes in PANEL.items():
                found = resolve([f"{candidates}/{operator}.py"], list(suite.problems), operator)
                for unit in make_plan(suite, found, shapes, None, "cuda", held_out=False).units:
                    record = UnitJudge(setup, unit).run()
                    seen.setdefault((operator, record.shape), []).append((record, setup.baseline.floor_us))
        finally:
            setup.close()
    rows = []
    for (operator, shape), found in seen.items():
        medians = [r.performance.median_us for r, _ in found if r.performance]
        spans = [r.performance.kernel_us for r, _ in found if r.performance and r.performance.kernel_us]
        if len(medians) < times or not spans:
            rows.append({"operator": operator, "shape": shape, "verdicts": [r.verdict.reason for r, _ in found]})
            continue
        middle, floor = statistics.median(medians), statistics.median(f for _, f in found)
        spread, span = max(medians) - min(medians), statistics.median(spans)
        gap = middle - floor - span
        rows.append(
            {
                "operator": operator,
                "shape": shape,
                "medians_us": medians,
                "slopes_us": [r.performance.slope_us for r, _ in found],
                "spread_us": spread,
                "spread_share": spread / middle,
                "repeatable": spread <= 0.5 if middle < 10 else spread <= 0.03 * middle,
                "floor_us": floor,
                "cupti_span_us": span,
                "event_less_floor_us": middle - floor,
                "seconds": [r.seconds for r, _ in found],
                "events_agree": abs(gap) <= max(2.0, 0.05 * span),
            }
        )
    return rows, about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("candidates")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--pace", default="rms_norm,all", help="which whole commands to time; empty for none")
    args = parser.parse_args()
    device = resolve_device(args.device)
    args.runs.mkdir(parents=True, exist_ok=True)
    record = {
        "what": "the judge on itself: pace, repeatability, floor, events against CUPTI",
        "command": f"python benchmarks/judge.py {args.candidates} --device {args.device} --times {args.times} "
        f"--pace '{args.pace}' --out results/{args.out.name}",
        "date": now(),
        "device": device_name(device),
        "versions": versions(),
    }
    if args.pace:
        record["pace"] = pace(args.candidates, args.device, args.runs, args.pace.split(","))
    record["panel"], about = repeat(args.candidates, args.device, args.times)
    record |= about
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    for row in record["panel"]:
        if "verdicts" in row:
            print(row["operator"], row["shape"], row["verdicts"])
            continue
        print(
            f"{row['operator']}/{row['shape']}: {statistics.median(row['medians_us']):.2f} us, "
            f"spread {row['spread_us']:.2f} us ({row['spread_share']:.1%}), own clock "
            f"{statistics.median(row['slopes_us']):.2f}, events less floor {row['event_less_floor_us']:.2f}, "
            f"CUPTI span {row['cupti_span_us']:.2f}; repeatable {row['repeatable']}, events agree {row['events_agree']}"
        )
    print({k: round(v, 2) for k, v in about.items()})


if __name__ == "__main__":
    main()
