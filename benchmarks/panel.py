"""The judge on honest kernels, over and over: false verdicts, and how far medians spread.

    python benchmarks/panel.py --device cuda:0 --times 10 --out results/h200-panel.json

The panel is two units of every operator: the smallest published shape and one of middle size; on a GPU with the first
versions in Triton, on the CPU with the C++ examples and the operator's own reference, in torch, where there is none.
Every run draws new seeds. A false verdict is a unit that did not pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from atrex.baselines.reference_text import reference_text
from atrex.evaluate.budgets import CPU_LIMIT, Budgets, predicted_seconds
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.engine import Terms
from atrex.evaluate.plan import choose_dsl
from atrex.evaluate.pool import Pool
from atrex.evaluate.run import device_name, versions
from atrex.evaluate.rundir import now
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import resolve_device
from atrex.evaluate.unit import Unit
from atrex.files import write
from atrex.problems.load import load_suite

ROOT = Path(__file__).parents[1]
KERNELS = {"cuda": ROOT / "results" / "vanilla" / "triton", "cpu": ROOT / "examples" / "candidates" / "cpp"}


def panel(device_type: str) -> list[Unit]:
    """Two units per operator, honest kernels."""
    units = []
    for problem in load_suite().problems.values():
        shapes = [s for s in problem.shapes.values() if device_type != "cpu" or CPU_LIMIT.fits(problem.work(s))]
        shapes.sort(key=lambda s: predicted_seconds(problem.work(s)))
        candidate = _candidate(problem, device_type)
        dsl = choose_dsl(candidate, None, device_type)
        for shape in {shapes[0].id: shapes[0], shapes[len(shapes) // 2].id: shapes[len(shapes) // 2]}.values():
            units.append(Unit(candidate, problem, shape, dsl))
    return units


def _candidate(problem, device_type: str) -> Candidate:
    path = KERNELS[device_type] / f"{problem.operator}.py"
    if not path.exists():  # as a candidate: what serving updates in place is updated in place
        name, text = f"{problem.operator}, its reference", reference_text(problem, "The reference, eager.", False)
    else:
        name, text = str(path.relative_to(ROOT)), path.read_text()
    return Candidate(Path(f"{problem.operator}.py"), name, name, problem.operator, text)


def spread(medians: list[float]) -> float:
    """The widest gap between the medians of one unit, in microseconds."""
    return max(medians) - min(medians)


def table(
    args: argparse.Namespace, device: torch.device, units: int, runs: int, seen: dict, false: list, seconds: list,
    remeasured: int,
) -> dict[str, Any]:  # fmt: skip
    """The record of the runs so far."""
    rows = [
        {"operator": o, "shape": s, "median_us": statistics.median(m), "spread_us": spread(m), "runs": len(m)}
        for (o, s), m in sorted(seen.items())
    ]
    return {
        "what": "honest kernels judged over and over: false verdicts and the spread of medians",
        "command": f"python benchmarks/panel.py --device {args.device} --times {args.times} --judges {args.judges} "
        f"--out results/{args.out.name}",
        "date": now(),
        "device": device_name(device),
        "versions": versions(),
        "units": units,
        "runs": runs,
        "judged": runs * units,
        "false_verdicts": false,
        "remeasured": remeasured,
        "seconds_per_unit": statistics.fmean(seconds),
        "panel": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--judges", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = resolve_device(args.device)
    units = panel(device.type)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    seen: dict[tuple[str, str], list[float]] = {}
    false, seconds, remeasured = [], [], 0
    for time in range(args.times):
        terms = Terms(Seeds().secret, 1, Budgets(), readiness=False)
        pool = Pool([str(device)], args.judges, terms)
        try:
            for record in pool.judge(units):
                seconds.append(record.seconds)
                key = (record.operator, record.shape)
                if record.verdict.status != "passed":
                    false.append({"run": time, "operator": key[0], "shape": key[1], "reason": record.verdict.reason})
                else:
                    seen.setdefault(key, []).append(record.performance.median_us)
                    remeasured += record.performance.remeasured is not None
        finally:
            pool.close()
        print(f"run {time}: {len(false)} false verdicts so far", flush=True)
        record = table(args, device, len(units), time + 1, seen, false, seconds, remeasured)
        write(args.out, json.dumps(record, indent=1))  # what was run counts, whatever ends the rest
    rows, judged = record["panel"], record["judged"]
    shares = [row["spread_us"] / row["median_us"] for row in rows if row["median_us"] >= 10]
    small = [row["spread_us"] for row in rows if row["median_us"] < 10]
    print(f"{judged} judged, {len(false)} false verdicts, {remeasured} measured twice")
    if shares:
        print(f"10 us and over: spread {statistics.median(shares):.1%} in the middle, {max(shares):.1%} at most")
    if small:
        print(f"under 10 us: spread {statistics.median(small):.2f} us in the middle, {max(small):.2f} us at most")


if __name__ == "__main__":
    main()
