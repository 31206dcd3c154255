"""Time the baselines on a few shapes of every operator: a table operator x baseline, within a time limit.

    python benchmarks/baselines.py --device cuda:0 --out runs/baselines --record results/h200-baselines.json
    python benchmarks/baselines.py --show results/h200-baselines.json

One run directory a baseline under --out, each good for `atrex score RUN --baseline`. When the time is over, what is
finished is recorded; the same command again continues. Libraries that are not installed are named in the record. The
slow one, torch.compile, comes last: it takes what time is left.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from atrex import baselines
from atrex.baselines import Baseline
from atrex.errors import UserError
from atrex.evaluate.budgets import CPU_LIMIT, Budgets, predicted_seconds
from atrex.evaluate.run import Request, run
from atrex.evaluate.rundir import now
from atrex.problems.load import load_suite
from atrex.problems.model import Problem, Shape, Suite
from atrex.report import figures
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.runs import Run, load_run


def chosen_shapes(problem: Problem, count: int, device_type: str) -> list[Shape]:
    """`count` published shapes from the middle of as many equal parts of all, by cost; on the CPU of those that fit."""
    found = [s for s in problem.shapes.values() if _published(problem, s)]
    if device_type == "cpu":
        found = [s for s in found if CPU_LIMIT.fits(problem.work(s))]
    found.sort(key=lambda s: predicted_seconds(problem.work(s)))
    places = {(2 * i + 1) * len(found) // (2 * count) for i in range(count)} if found else set()
    return [found[place] for place in sorted(places)]


def _published(problem: Problem, shape: Shape) -> bool:
    about = problem.metadata.shapes.get(shape.id)
    return about is not None and about.origin == "published"


def order(names: Iterable[str]) -> list[str]:
    """torch.compile last, the others as they stand."""
    return sorted(names, key=lambda name: name == "torch.compile")


def judge(
    baseline: Baseline, suite: Suite, problems: Sequence[Problem], folder: Path, options: argparse.Namespace,
    progress: Any = None,
) -> bool:  # fmt: skip
    """Judge a baseline's share of the table into `folder`, or go on with it. Returns whether it is finished."""
    wanted = {p.operator: {s.id for s in chosen_shapes(p, options.shapes, options.device[:4])} for p in problems}
    covered = [p for p in problems if baseline.has(p.operator)]
    left_out = {
        (p.operator, shape.id)
        for p in covered
        for shape in p.shapes.values()
        if shape.id not in wanted[p.operator] or baseline.lacks(p, shape)
    }
    covered = [p for p in covered if any((p.operator, shape) not in left_out for shape in p.shapes)]
    if not covered:
        return True
    artifacts = folder / "artifacts"
    resume = (folder / "run.json").exists()
    if not resume:
        artifacts.mkdir(parents=True, exist_ok=True)
        for p in covered:
            (artifacts / f"{p.operator}.py").write_text(baseline.text(p), encoding="utf-8")
    request = Request(
        candidates=[str(artifacts)], device=options.device, seeds=options.seeds, out=folder, resume=resume,
        budgets=Budgets(compile=options.compile_budget), held_out=False, readiness=False, all_sizes=True,
        judges=options.judges, left_out=frozenset(left_out),
        origins={operator: baseline.origin(operator) for operator in suite.problems if baseline.has(operator)},
    )  # fmt: skip
    return not run(request, progress).interrupted


def table(runs: dict[str, Run]) -> list[dict[str, Any]]:
    """A row a unit, by operator and shape: its time by baseline in microseconds, or why there is none."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, found in runs.items():
        for r in found.records:
            row = rows.setdefault(
                (r.operator, r.shape), {"operator": r.operator, "shape": r.shape, "us": {}, "failed": {}}
            )
            if r.verdict.status is Status.PASSED and r.performance:
                row["us"][name] = round(r.performance.median_us, 3)
            else:
                row["failed"][name] = {"verdict": figures.verdict(r.verdict), "reason": _line(r.verdict.reason)}
    return [rows[key] for key in sorted(rows, key=lambda key: (key[0], int(key[1]) if key[1].isdigit() else 0))]


def _line(reason: str | None) -> str:
    return " ".join((reason or "").split())[:200]


def described(name: str, found: Run) -> dict[str, Any]:
    """What a record says about one baseline: library, version, and what it calls for each operator."""
    origins = {c["operator"]: c["baseline"] for c in found.run["candidates"]}
    first = next(iter(origins.values()))
    return {
        "library": first["library"],
        "version": first["version"],
        "units": len(found.records),
        "planned": len(found.run["planned"]),
        "passed": sum(r.verdict.status is Status.PASSED for r in found.records),
        "operators": {
            operator: {key: origin[key] for key in ("calls", "note") if origin[key]}
            for operator, origin in sorted(origins.items())
        },
    }


def markdown(record: dict[str, Any]) -> str:
    """The record as a table: a row a unit, a column a baseline; a failure is named, a dash is not in the library."""
    names = list(record["baselines"])
    lines = ["| operator | shape | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for row in record["rows"]:
        cells = " | ".join(_cell(row, name) for name in names)
        lines.append(f"| `{row['operator']}` | {row['shape']} | {cells} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], name: str) -> str:
    if name in row["failed"]:
        return row["failed"][name]["verdict"].split(": ")[-1]
    return figures.us(row["us"].get(name))


class TimeOver(KeyboardInterrupt):
    """The time limit has passed; runs are left as after Ctrl-C."""


def _over(signum: int, frame: Any) -> None:
    raise TimeOver


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--baseline", nargs="*", help="which; default: all that are installed")
    parser.add_argument("--problem", nargs="*", help="operators; default: all")
    parser.add_argument("--shapes", type=int, default=2, help="shapes an operator")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--judges", type=int, default=4, help="judges that share the device; they time alone")
    parser.add_argument("--seconds", type=float, default=480.0, help="when to stop and record what there is")
    parser.add_argument("--compile-budget", type=float, default=120.0, help="seconds for a unit's first forward")
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"), help="folder of the run directories")
    parser.add_argument("--record", type=Path, help="write the JSON record here")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print a record as a table and do nothing else")
    options = parser.parse_args()
    if options.show:
        print(markdown(json.loads(options.show.read_text(encoding="utf-8"))))
        return
    started = time.monotonic()
    suite = load_suite()
    problems = [suite.problem(name) for name in options.problem or suite.problems]
    absent: dict[str, str] = {}
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, options.seconds)
    finished = False
    try:
        for name in order(options.baseline or baselines.names()):
            try:
                baseline = baselines.get(name)
                baseline.require(options.device)
                done = judge(baseline, suite, problems, options.out / name, options, _say(name, started))
            except UserError as error:
                absent[name] = str(error)
                print(error, file=sys.stderr, flush=True)
                continue
            if not done:
                break
        else:
            finished = True
    except TimeOver:
        pass  # between two runs
    signal.setitimer(signal.ITIMER_REAL, 0)
    runs = {
        path.parent.name: load_run(path.parent)
        for name in order(baselines.names())
        if (path := options.out / name / "run.json").exists()
    }
    runs = {name: found for name, found in runs.items() if found.records}
    if not runs:
        raise UserError(f"{options.out}: no unit of any baseline was judged")
    first = next(iter(runs.values())).run
    record = {
        "command": " ".join(["python benchmarks/baselines.py", *sys.argv[1:]]),
        "date": now(),
        "device": first["device_name"],
        "chip": first["chip"],
        "versions": first["versions"] | (first.get("worker_versions") or {}),
        "suite_hash": first["suite_hash"],
        "seeds": options.seeds,
        "shapes_per_operator": options.shapes,
        "seconds": round(time.monotonic() - started, 1),
        "finished": finished,
        "absent": absent,
        "baselines": {name: described(name, found) for name, found in runs.items()},
        "rows": table(runs),
    }
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(markdown(record))
    print(f"{record['seconds']} s, {'finished' if finished else 'time over: the same command continues'}")


def _say(name: str, started: float):
    def say(done: int, of: int, r: UnitRecord) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {name} {done}/{of}  {figures.unit_line(r)[:160]}", flush=True)

    return say


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
