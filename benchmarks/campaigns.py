"""Campaigns over a simulated clock: how often nothing is promoted as a gain, and how often a gain is found.

    python benchmarks/campaigns.py --noise results/h200-judge.json --operator rms_norm --out results/null-campaigns.json

A measurement is the unit's own median times a deviation drawn from what repeated evaluations of the same kernel showed
in the noise record: every evaluation there is a fresh worker with new inputs, as in a campaign. Decisions are made by
`atrex.optimize.promotion.decide`, as campaigns make them. Beside it stands the rule of taking a candidate whose one
measurement, averaged over shapes, is better than the incumbent's last one. The clock is simulated, the noise is not.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path

from scipy.stats import binomtest

from atrex.evaluate.rundir import now
from atrex.optimize.promotion import Rule, decide


def noise_of(record: dict, operator: str) -> dict[str, tuple[float, list[float]]]:
    """Shape id -> its median in microseconds, and the log deviations from the mean, scaled to be unbiased."""
    found = {}
    for row in record["panel"]:
        if row["operator"] == operator:
            logs = [math.log(us) for us in row["medians_us"]]
            scale = math.sqrt(len(logs) / (len(logs) - 1))
            mean = statistics.fmean(logs)
            found[row["shape"]] = (statistics.median(row["medians_us"]), [scale * (log - mean) for log in logs])
    return found


class Clock:
    """Incumbent and candidate with true times; the candidate takes `1 / gain` of the incumbent's."""

    def __init__(self, noise: dict[str, tuple[float, list[float]]], rng: random.Random):
        self._noise, self._rng = noise, rng
        self.gain = 1.0
        self.rounds = 0

    def once(self, gain: float, shapes=None) -> dict[str, float]:
        """One measurement of a kernel by shape, in microseconds."""
        return {
            shape: us / gain * math.exp(self._rng.choice(deviations))
            for shape, (us, deviations) in self._noise.items()
            if shapes is None or shape in shapes
        }

    def __call__(self, shapes):
        self.rounds += 1
        a, b = self.once(1.0, shapes), self.once(self.gain, shapes)
        return {shape: (a[shape], b[shape]) for shape in a}


def null_campaigns(noise, campaigns: int, candidates: int, rng: random.Random) -> dict:
    """Campaigns in which every candidate is exactly as fast as its incumbent."""
    ours, first_ours, single, within_two, decisions, rounds = 0, [], 0, 0, 0, 0
    for _ in range(campaigns):
        clock = Clock(noise, rng)
        for number in range(1, candidates + 1):
            decisions += 1
            if decide(clock, number, Rule()).promoted:
                ours += 1
                first_ours.append(number)
                break
        rounds += clock.rounds
        best, promoted = _mean_log(clock.once(1.0)), []
        for number in range(1, candidates + 1):
            seen = _mean_log(clock.once(1.0))
            if seen < best:
                best = seen
                promoted.append(number)
        single += bool(promoted)
        within_two += bool(promoted) and promoted[0] <= 2
    return {
        "campaigns": campaigns,
        "candidates_each": candidates,
        "promoting_anything": _share(ours, campaigns),
        "first_promotion_at": sorted(first_ours),
        "rounds_per_decision": rounds / decisions,
        "single_measurement_rule": {
            "promoting_anything": _share(single, campaigns),
            "within_two_candidates": _share(within_two, campaigns),
        },
    }


def real_gains(noise, campaigns: int, candidates: int, gain: float, rng: random.Random) -> dict:
    """Campaigns in which one candidate, at a place drawn anew, is truly faster: whether that one is promoted."""
    found, rounds = 0, []
    for _ in range(campaigns):
        clock = Clock(noise, rng)
        clock.gain = gain
        found += decide(clock, rng.randint(1, candidates), Rule()).promoted
        rounds.append(clock.rounds)
    return {
        "campaigns": campaigns,
        "gain": gain,
        "at_decision": f"1 to {candidates}",
        "promoted": _share(found, campaigns),
        "median_rounds": statistics.median(rounds),
    }


def _mean_log(times: dict[str, float]) -> float:
    return statistics.fmean(map(math.log, times.values()))


def _share(count: int, of: int) -> dict:
    interval = binomtest(count, of).proportion_ci(0.95, "exact")
    return {"count": count, "share": count / of, "ci95": [interval.low, interval.high]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=Path, default=Path("results/h200-judge.json"))
    parser.add_argument("--operator", default="rms_norm")
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--gains", type=float, nargs="*", default=[1.01, 1.02, 1.03, 1.05])
    parser.add_argument("--gain-campaigns", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    source = json.loads(args.noise.read_text())
    noise, rng = noise_of(source, args.operator), random.Random(args.seed)
    started = time.monotonic()
    record = {
        "what": "campaigns over a simulated clock, under the noise of repeated evaluations",
        "command": f"python benchmarks/campaigns.py --noise {args.noise} --operator {args.operator} --campaigns "
        f"{args.campaigns} --candidates {args.candidates} --gain-campaigns {args.gain_campaigns} --seed {args.seed} "
        f"--out results/{args.out.name}",
        "date": now(),
        "noise": {"record": str(args.noise), "device": source["device"], "versions": source["versions"]}
        | {shape: {"us": us, "sd_percent": 100 * statistics.pstdev(logs)} for shape, (us, logs) in noise.items()},
        "rule": {"error": Rule().error, "looks": Rule().looks},
        "null": null_campaigns(noise, args.campaigns, args.candidates, rng),
        "gains": [real_gains(noise, args.gain_campaigns, args.candidates, gain, rng) for gain in args.gains],
    }
    record["seconds"] = time.monotonic() - started
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["null"], indent=1), *map(json.dumps, record["gains"]), sep="\n")


if __name__ == "__main__":
    main()
