"""Real campaigns in which nothing is to be gained: another binary, the same work, deduplication off.

    python benchmarks/null_campaigns.py --device cpu --out results/null-campaigns-cpu.json
    python benchmarks/null_campaigns.py --device cuda:0 --campaigns 1 --out results/null-campaigns-h200.json

Every decision is made by `atrex.optimize.promotion.decide`, as campaigns make it, over rounds in which incumbent and
candidate are whole judged units, each in a fresh worker and with new inputs (`atrex.evaluate.versus.Bout`). The kernels
are drawn by `null_kernels`; a campaign ends at its first promotion. To be cheap, the shape is a small one and a unit
times as few calls as the judge allows (--calls). What is in OUT is gone on with; --until-s ends a run in time, at the
end of a decision.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from null_kernels import kernel
from scipy.stats import binomtest

from atrex.evaluate import versus
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.rundir import now
from atrex.evaluate.unit import UnitJudge
from atrex.evaluate.versus import Bout, Match, Stopped
from atrex.files import write
from atrex.optimize.patience import Bounds, GaveUp
from atrex.optimize.promotion import Rule, decide
from atrex.scoring.records import Status, UnitRecord

OPERATOR = "rms_norm"
_CONTEST_ROUNDS = 56  # as campaigns bound a contest by default
_AGAIN = 3  # rounds in a row that noise may spoil


@dataclass
class Seen:
    """What units of this run compiled to, by SHA-256 of the source, and how many there were."""

    artifacts: dict[str, list[str]] = field(default_factory=dict)
    units: int = 0

    def add(self, record: UnitRecord) -> None:
        self.units += 1
        if record.compile is not None:
            self.artifacts[record.candidate_sha256] = sorted(each.sha256 for each in record.compile.artifacts)


def watched(seen: Seen) -> type[UnitJudge]:
    """The judge of a unit, whose records are noted."""

    class Watched(UnitJudge):
        def run(self) -> UnitRecord:
            record = super().run()
            seen.add(record)
            return record

    return Watched


class Series(Bout):
    """A bout whose kernels change: the device is prepared once for a whole campaign, workers are fresh as ever."""

    def __init__(self, match: Match, calls: int):
        super().__init__(match)
        self._setup.timed_calls = calls

    def against(self, match: Match) -> None:
        self._pairs = {a.shape.id: (a, b) for a, b in versus._units(match, self._setup.device.type)}


def patient(measure: Callable) -> Callable:
    """Rounds of a contest; one that noise has spoilt is measured again a few times, and then given up."""

    def measured(shapes=None):
        for _ in range(_AGAIN):
            try:
                return measure(shapes)
            except Stopped as stopped:
                verdict = stopped.record.verdict
                if verdict.status is not Status.ERROR:
                    raise
                why = verdict.reason
        raise GaveUp(f"{_AGAIN} rounds could not be timed: {why}")

    return measured


def campaign(number: int, done: dict, args: argparse.Namespace, keep: Callable[[], None], until: float) -> None:
    """Decide on candidates until one is promoted, all are decided on, or time is over. `done` is what is known."""
    seen = Seen()
    versus.UnitJudge = watched(seen)
    dsl = "cpp" if args.device == "cpu" else "triton"
    with tempfile.TemporaryDirectory(prefix="atrex-null-") as folder:

        def match(candidate: int) -> Match:
            paths = []
            for each in (0, candidate):
                path = Path(folder) / f"k{each}.py"
                path.write_text(kernel(dsl, 1000 * number + each))
                paths.append(str(path))
            return Match(*paths, OPERATOR, args.shape, dsl, args.device)

        decisions = done["decisions"]
        with Series(match(1), args.calls) as series:
            while len(decisions) < args.candidates and time.monotonic() < until:
                candidate, began = len(decisions) + 1, time.monotonic()
                seen.units = 0
                series.against(match(candidate))
                found = decide(patient(series.round), candidate, Rule(), Bounds(rounds=_CONTEST_ROUNDS))
                one = found.comparison.overall if found.comparison else None
                decisions.append({
                    "why": found.why, "reason": found.reason, "rounds": found.rounds, "units": seen.units,
                    "ratio": one and round(one.ratio, 4), "seconds": round(time.monotonic() - began, 1),
                    "median_us": [round(sorted(pair[side] for pair in next(iter(found.times.values())))[
                        found.rounds // 2], 3) for side in (0, 1)] if found.times else None,
                })  # fmt: skip
                done["binaries"] |= {sha[:16]: each for sha, each in seen.artifacts.items()}
                done["promoted"] = found.promoted
                keep()
                print(f"campaign {number}, candidate {candidate}: {json.dumps(decisions[-1])}", flush=True)
                if found.promoted:
                    return


def over(done: dict, candidates: int) -> bool:
    return done["promoted"] or len(done["decisions"]) >= candidates


def summary(campaigns: list[dict], candidates: int) -> dict:
    """Campaigns that are over: how many promoted anything, with its exact 95 % interval, and what they took."""
    ended = [each for each in campaigns if over(each, candidates)]
    decisions = [one for each in ended for one in each["decisions"]]
    if not ended:
        return {"campaigns": 0}
    promoted = sum(each["promoted"] for each in ended)
    interval = binomtest(promoted, len(ended)).proportion_ci(0.95, "exact")
    binaries = [tuple(each) for one in ended for each in one["binaries"].values()]
    return {
        "campaigns": len(ended),
        "promoting_anything": promoted,
        "ci95": [interval.low, interval.high],
        "decisions": len(decisions),
        "ended": {why: sum(one["why"] == why for one in decisions) for why in sorted({d["why"] for d in decisions})},
        "rounds_per_decision": sum(one["rounds"] for one in decisions) / len(decisions),
        "units": sum(one["units"] for one in decisions),
        "kernels": len(binaries),
        "different_binaries": len(set(binaries)),
        "seconds": sum(one["seconds"] for one in decisions),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", default="15")
    parser.add_argument("--campaigns", type=int, default=20)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--calls", type=int, default=Budgets.MIN_CALLS)
    parser.add_argument("--until-s", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    until = time.monotonic() + args.until_s
    what = {
        "device": args.device,
        "operator": OPERATOR,
        "shape": args.shape,
        "candidates_each": args.candidates,
        "calls": args.calls,
    }
    record = json.loads(args.out.read_text()) if args.out.exists() else {}
    if record and {key: record[key] for key in what} != what:
        parser.error(f"{args.out}: holds other campaigns; name a new file")
    if not record:
        record = {
            "what": "real campaigns of candidates that do the same work in another binary, deduplication off",
            "command": f"python benchmarks/null_campaigns.py --device {args.device} --shape {args.shape} --campaigns "
            f"{args.campaigns} --candidates {args.candidates} --calls {args.calls} --out results/{args.out.name}",
            "date": now(), "device_name": versus.device_name(versus.resolve_device(args.device)),
            "versions": versus.versions(),
            "rule": {"error": Rule().error, "looks": Rule().looks, "contest_rounds": _CONTEST_ROUNDS},
        } | what | {"runs": []}  # fmt: skip
    runs = record["runs"]

    def keep() -> None:
        record["summary"] = summary(runs, args.candidates)
        write(args.out, json.dumps(record, indent=1) + "\n")

    for number in range(args.campaigns):
        if number == len(runs):
            runs.append({"number": number, "promoted": False, "decisions": [], "binaries": {}})
        if not over(runs[number], args.candidates) and time.monotonic() < until:
            campaign(number, runs[number], args, keep, until)
    keep()
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()
