"""How often heats select the attempt that is truly faster, over a simulated clock with measured noise.

    python benchmarks/selection.py --noise results/h200-judge.json --operator rms_norm --out results/selection.json

An iteration has attempts from one incumbent, one of them truly faster and the others as fast as the incumbent. Each has
a heat against the incumbent, and the largest mean log ratio is selected, as `atrex.optimize.field` does. The clock is
that of `campaigns.py`: simulated, with the deviations of repeated evaluations on a device.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from contextlib import nullcontext
from pathlib import Path

from campaigns import Clock, noise_of
from scipy.stats import binomtest

from atrex.evaluate.rundir import now
from atrex.optimize.field import Heat, run_heat
from atrex.optimize.promotion import HEAT_ROUNDS


def heat(clock: Clock, gain: float) -> Heat:
    clock.gain = gain
    return run_heat(nullcontext(clock))


def selected(clock: Clock, gain: float, width: int, iterations: int) -> dict:
    """How often the first of `width` attempts, which alone is faster, is the one selected; ratios of the selected."""
    right, seen = 0, []
    for _ in range(iterations):
        ratios = [heat(clock, gain if i == 0 else 1.0).comparison.overall.ratio for i in range(width)]
        best = max(range(width), key=ratios.__getitem__)
        right += best == 0
        seen.append(ratios[best])
    interval = binomtest(right, iterations).proportion_ci(0.95, "exact")
    return {
        "gain": gain, "iterations": iterations, "right": right, "ci95": [interval.low, interval.high],
        "ratio_of_the_selected_in_its_heat": statistics.fmean(seen),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=Path, default=Path("results/h200-judge.json"))
    parser.add_argument("--operator", default="rms_norm")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--gains", type=float, nargs="*", default=[1.0, 1.01, 1.02, 1.03, 1.05])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    source = json.loads(args.noise.read_text())
    clock = Clock(noise_of(source, args.operator), random.Random(args.seed))
    record = {
        "what": "which of several attempts is selected, over a simulated clock under the noise of repeated evaluations",
        "command": f"python benchmarks/selection.py --noise {args.noise} --operator {args.operator} "
        f"--width {args.width} --iterations {args.iterations} --seed {args.seed} --out results/{args.out.name}",
        "date": now(),
        "noise": {"record": str(args.noise), "device": source["device"], "versions": source["versions"]},
        "width": args.width,
        "rounds": HEAT_ROUNDS,
        "by_gain": [selected(clock, gain, args.width, args.iterations) for gain in args.gains],
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(*map(json.dumps, record["by_gain"]), sep="\n")


if __name__ == "__main__":
    main()
