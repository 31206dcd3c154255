"""How fast whole runs were judged, and where their time went.

    atrex eval results/vanilla/triton --device cuda:0 --judges 4 --out runs/one
    atrex eval results/vanilla/triton --device cuda:0,cuda:1 --judges 4 --out runs/two
    python benchmarks/pace.py runs/one runs/two --out results/h200-pace.json

Of finished run directories: units per minute of wall clock, with the ratio to the first one; the judges' seconds by
phase, where `wait` is for a device that others have; and a unit's seconds beside what its timed forwards took, which is
the judge's overhead.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.stats import percentile
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.runs import read_run


def pace(run: Path) -> dict[str, Any]:
    """One run's figures. SystemExit for a directory that is no finished run."""
    try:
        about, records = read_run(run)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    if not about.get("closed"):
        raise SystemExit(f"error: {run / 'run.json'}: closed: not set; the run is not finished")
    seconds = (datetime.fromisoformat(about["closed"]) - datetime.fromisoformat(about["created"])).total_seconds()
    phases: Counter[str] = Counter()
    for record in records:
        phases.update(record.phases)
    timed = [r for r in records if r.performance]
    forwards = [r.performance.n * r.performance.median_us / 1e6 for r in timed]
    beside = [r.seconds - _waited(r) - f for r, f in zip(timed, forwards, strict=True)]
    judges = about.get("judges_per_device", 1) * max(1, len(about.get("devices", {})))
    return {
        "run": run.name,
        "devices": sorted(about.get("devices", {about["device"]: None})),
        "device_name": about["device_name"],
        "judges": judges,
        "versions": about["versions"],
        "created": about["created"],
        "seeds": about["seed_count"],
        "units": sum(not r.held_out for r in records),
        "held_out": sum(r.held_out for r in records),
        "passed": sum(r.verdict.status is Status.PASSED for r in records),
        "wall_seconds": seconds,
        "units_per_minute": 60 * len(records) / seconds,
        "seconds_by_phase": {name: round(value, 1) for name, value in phases.most_common()},
        "not_in_a_phase": round(sum(r.seconds for r in records) - sum(phases.values()), 1),
        "idle_judges": round(judges * seconds - sum(r.seconds for r in records), 1),
        "timed_forwards_seconds": round(sum(forwards), 1),
        "overhead_seconds_per_timed_unit": {
            "median": round(statistics.median(beside), 3) if beside else None,
            "p90": round(percentile(beside, 90), 3) if beside else None,
        },
        "by_operator": _by_operator(records),
    }


def _waited(record: UnitRecord) -> float:
    return record.phases.get("wait", 0.0)


def _by_operator(records: list[UnitRecord]) -> dict[str, Any]:
    found: dict[str, list[UnitRecord]] = {}
    for record in records:
        found.setdefault(record.operator, []).append(record)
    return {
        operator: {
            "units": len(members),
            "seconds_per_unit": round(statistics.mean(r.seconds for r in members), 2),
            "of_these_waiting": round(statistics.mean(map(_waited, members)), 2),
        }
        for operator, members in sorted(found.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    runs = [pace(run) for run in args.runs]
    for run in runs:
        run["times_the_first"] = run["units_per_minute"] / runs[0]["units_per_minute"]
        most = ", ".join(f"{name} {seconds:.0f}" for name, seconds in list(run["seconds_by_phase"].items())[:8])
        print(
            f"{run['run']}: {len(run['devices'])} device(s), {run['judges']} judges: {run['units']} units and "
            f"{run['held_out']} held-out in {run['wall_seconds']:.0f} s, {run['units_per_minute']:.1f} a minute, "
            f"{run['times_the_first']:.2f} times the first; {most}; overhead of a timed unit "
            f"{run['overhead_seconds_per_timed_unit']['median']} s"
        )
    command = f"python benchmarks/pace.py {' '.join(str(run) for run in args.runs)} --out results/{args.out.name}"
    record = {"what": "how fast whole runs were judged, and where their time went", "command": command, "runs": runs}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
