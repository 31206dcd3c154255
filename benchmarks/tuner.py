"""What the tuner finds on this CPU: S of each C++ template with its defaults and as tuned, and the ratio's interval.

    python benchmarks/tuner.py --out results/tuner-cpu.json [--trials 32] [--rounds 6]

`atrex generate --agent tuner` works on each operator; `atrex eval` judges defaults and tuned candidates in one run on
the shapes below; `atrex compare` then measures the two against each other, every time in a fresh process and in an
order drawn anew. The load of the machine stands beside the numbers: other work on it makes them worthless.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from atrex.agents.tuner.knobs import find, render, values
from atrex.agents.tuner.templates import path
from atrex.evaluate.run import device_name, versions
from atrex.evaluate.rundir import now
from atrex.generate.records import load_records
from atrex.generate.transcript import read

# From the smallest to the largest that the judge takes on a CPU by default.
PANEL = {
    "rms_norm": "0,5,8,15,19,33,45,49",
    "silu_and_mul": "0,1,11,13,17,19,26,31",
    "block_scaled_mm": "0,1,12",
}


def atrex(*arguments: str) -> str:
    """What a command printed. Ends this program when it failed."""
    done = subprocess.run([sys.executable, "-m", "atrex.cli.main", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"atrex {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}{done.stdout}")
    return done.stdout


def tune(folder: Path, operator: str, trials: int) -> dict:
    """Defaults and tuned candidate as DEFAULTS/operator.py and TUNED/operator.py, and how the search went."""
    out = folder / f"generate-{operator}"
    atrex("generate", "--agent", f"tuner:{trials}", "--dsl", "cpp", "--problem", operator, "--out", str(out))
    (record,) = load_records(out)
    source = path("cpp", operator).read_text()
    for name, text in (("defaults", render(source, {}, plain=True)), ("tuned", _candidate(out, operator))):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"{operator}.py").write_text(text)
    said = [event.text for _, event in read(out / "transcripts" / f"{operator}-0.jsonl") if event.kind == "message"]
    trial_lines = [text for text in said if text.startswith("trial ")]
    return {
        "knobs": {knob.name: list(knob.options) for knob in find(source)},
        "defaults": values(find(source)),
        "trials": len(trial_lines),
        "became_incumbent": sum(text.endswith("it is the incumbent now") for text in trial_lines),
        "failed": sum("of the incumbent's time" not in text for text in trial_lines),
        "seconds": record.seconds,
        "outcome": said[-1],
    }


def _candidate(out: Path, operator: str) -> str:
    return (out / "sample-0" / f"{operator}.py").read_text()


def judge(folder: Path, operator: str, shapes: str) -> dict:
    """S_j of both by shape, and their medians, from one run of the judge."""
    out = folder / f"eval-{operator}"
    sides = [str(folder / name / f"{operator}.py") for name in ("defaults", "tuned")]
    atrex("eval", *sides, "--device", "cpu", "--shapes", shapes, "--no-held-out", "--no-readiness", "--out", str(out))
    scores: dict[str, dict[str, float]] = {"defaults": {}, "tuned": {}}
    for line in (out / "units.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["verdict"]["status"] != "passed":
            raise SystemExit(f"{record['candidate']} {record['shape']}: {record['verdict']}")
        scores[Path(record["candidate"]).parent.name][record["shape"]] = record["roofline"]["S"]
    medians = {name: statistics.median(each.values()) for name, each in scores.items()}
    return {"S_before": medians["defaults"], "S_after": medians["tuned"], "S_by_shape": scores}


def compare(folder: Path, operator: str, shapes: str, rounds: int) -> dict:
    """How many times as fast as the defaults the tuned candidate is, with its 95 % interval."""
    sides = [str(folder / name / f"{operator}.py") for name in ("defaults", "tuned")]
    document = json.loads(
        atrex("compare", *sides, "--device", "cpu", "--shapes", shapes, "--rounds", str(rounds), "--json")
    )
    found = document["comparison"]
    return {
        "overall": found["overall"],
        "p_faster": found["p_faster"],
        "shapes": {row["shape"]: {"defaults_us": row["a_us"], "tuned_us": row["b_us"]} | row["interval"]
                   for row in found["shapes"]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--operators", default=",".join(PANEL))
    given = parser.parse_args()
    document = {
        "what": "C++ templates on this CPU with their defaults and as the tuner leaves them",
        "command": f"python benchmarks/tuner.py --trials {given.trials} --rounds {given.rounds} "
                   f"--operators {given.operators} --out {given.out}",
        "created": now(),
        "device_name": device_name(torch.device("cpu")),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "rounds": given.rounds,
        "operators": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for operator in given.operators.split(","):
            load, began = [os.getloadavg()[0]], time.monotonic()
            found = tune(folder, operator, given.trials)
            load.append(os.getloadavg()[0])
            found |= judge(folder, operator, PANEL[operator])
            found |= {"ratio": compare(folder, operator, PANEL[operator], given.rounds)}
            load.append(os.getloadavg()[0])
            found |= {"load_before_tuning_judging_after": load, "seconds_in_all": time.monotonic() - began}
            document["operators"][operator] = found
            overall = found["ratio"]["overall"]
            print(
                f"{operator}: S {found['S_before']:.4f} -> {found['S_after']:.4f}, {overall['ratio']:.3f} times as "
                f"fast ({overall['low']:.3f} to {overall['high']:.3f}), load {load}",
                flush=True,
            )
            given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
