"""Campaigns by hand whose device is on another machine: what was prepared is handed in step by step, as bundles.

    python benchmarks/drive.py begin rms_norm topk_filter --chip H200      # runs/campaigns/OP, runs/questions/OP.tar
    python benchmarks/drive.py serve runs/questions/*.tar --seconds 500 --answers ANSWERS     # where the device is
    python benchmarks/drive.py step ANSWERS                                # ingest; hand in what is next; new questions
    python benchmarks/drive.py show

A campaign's script is kernels/campaigns/OP.json: `shapes`, `dsl`, the `baseline` file, and `iterations`, each a list of
attempts: a `plan` as `atrex optimize plan` takes it, and what `substitute` replaces in the operator's kernel, or in the
file `kernel`. The person who writes it looks at the evidence of the iteration before (`atrex optimize next`, `log`),
and adds to it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kernel_files import kernel_file  # noqa: E402
from benchmarks.replaced import NotOnce, replaced  # noqa: E402


def atrex(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess:
    """`atrex optimize ...`; SystemExit with what it said when it fails."""
    command = [sys.executable, "-m", "atrex.cli.main", "optimize", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if check and done.returncode:
        raise SystemExit(f"atrex optimize {arguments[0]}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done


def status(campaign: Path) -> dict[str, Any]:
    return json.loads(atrex("status", campaign, "--json").stdout)


def script(options: argparse.Namespace, operator: str) -> dict[str, Any]:
    path = options.scripts / f"{operator}.json"
    if not path.exists():
        raise SystemExit(f"error: {path}: no such file; expected the script of {operator}'s campaign")
    return json.loads(path.read_text())


def kernel(operator: str, attempt: dict[str, Any], folder: Path, number: int) -> Path:
    """The attempt's kernel as a file of its own. SystemExit where a text to replace is not there exactly once."""
    path = ROOT / attempt["kernel"] if "kernel" in attempt else kernel_file(operator)
    try:
        text = replaced(path.read_text(), attempt.get("substitute", []))
    except NotOnce as error:
        where = f"the script of {operator}: substitute: {path.relative_to(ROOT)}"
        raise SystemExit(f"error: {where} holds {error.old!r} {error.count} times; expected once") from None
    path = folder / f"{operator}-{number}.py"
    path.write_text(text)
    return path


def begin(options: argparse.Namespace) -> None:
    for operator in options.operators:
        found, campaign = script(options, operator), options.campaigns / operator
        width = max(1, *(len(attempts) for attempts in found["iterations"]))
        atrex(
            "init", "--problem", operator, "--dsl", found["dsl"], "--shapes", found["shapes"], "--chip", options.chip,
            "--width", width, "--dir", campaign,
        )  # fmt: skip
        atrex("next", campaign)
        hand_in(options, operator)


def hand_in(options: argparse.Namespace, operator: str) -> None:
    """What the campaign waits for, as far as its script has it; then the question for the device."""
    found, campaign = script(options, operator), options.campaigns / operator
    now = status(campaign)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if now["step"] == "baseline":
            atrex("submit", campaign, ROOT / found["baseline"])
        elif now["step"] in ("plan", "candidate"):
            if now["iterations"] >= len(found["iterations"]):
                print(f"{operator}: nothing more prepared; S {now['S_baseline']} -> {now['S']}")
                return
            attempts = found["iterations"][now["iterations"]]
            plans = [folder / f"plan-{i}.json" for i in range(len(attempts))]
            for path, attempt in zip(plans, attempts, strict=True):
                path.write_text(json.dumps(attempt["plan"]))
            if now["step"] == "plan":
                atrex("plan", campaign, *plans)
            atrex("submit", campaign, *(kernel(operator, attempt, folder, i) for i, attempt in enumerate(attempts)))
    question = options.questions / f"{operator}.tar"
    question.parent.mkdir(parents=True, exist_ok=True)
    question.unlink(missing_ok=True)
    atrex("bundle", campaign, question)
    print(f"{operator}: iteration {now['iteration']}, {question}")


def serve(options: argparse.Namespace) -> None:
    """Measure the questions one after the other; none is begun when the time is over."""
    options.answers.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for question in options.files:
        started = time.monotonic()
        if started - began > options.seconds:
            print(f"{question.stem}: not begun", flush=True)
            continue
        answer = options.answers / f"{question.stem}.answer.tar"
        done = atrex("serve-bundle", question, answer, "--device", options.device, check=False)
        said = "measured" if done.returncode == 0 else (done.stderr or done.stdout).strip().splitlines()[-1:]
        print(f"{question.stem}: {said}, {time.monotonic() - started:.0f} s", flush=True)


def step(options: argparse.Namespace) -> None:
    for answer in sorted(options.answers.glob("*.answer.tar")):
        operator = answer.name.removesuffix(".answer.tar")
        print(atrex("ingest", options.campaigns / operator, answer).stdout.strip()[-400:])
        atrex("next", options.campaigns / operator)
        hand_in(options, operator)


def show(options: argparse.Namespace) -> None:
    for campaign in sorted(options.campaigns.glob("*/campaign.json")):
        found = status(campaign.parent)
        print({key: found[key] for key in ("operator", "step", "iterations", "accepted", "S_baseline", "S")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=Path, default=ROOT / "runs" / "campaigns")
    parser.add_argument("--scripts", type=Path, default=ROOT / "kernels" / "campaigns")
    parser.add_argument("--questions", type=Path, default=ROOT / "runs" / "questions")
    verbs = parser.add_subparsers(dest="verb", required=True)
    beginning = verbs.add_parser("begin")
    beginning.add_argument("operators", nargs="+")
    beginning.add_argument("--chip", required=True, help="of the other machine's device, such as H200")
    serving = verbs.add_parser("serve")
    serving.add_argument("files", nargs="+", type=Path)
    serving.add_argument("--answers", type=Path, required=True)
    serving.add_argument("--device", default="cuda:0")
    serving.add_argument("--seconds", type=float, default=480.0)
    verbs.add_parser("step").add_argument("answers", type=Path)
    verbs.add_parser("show")
    options = parser.parse_args()
    {"begin": begin, "serve": serve, "step": step, "show": show}[options.verb](options)


if __name__ == "__main__":
    main()
