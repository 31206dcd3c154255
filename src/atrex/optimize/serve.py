"""On the machine with the device: measure what a bundle asks for, and leave an answer.

Nothing is decided here: the contest runs until a decision could be made, and the campaign's supervisor makes it from
the times. Beyond torch and the DSL this needs what the judge needs, and nothing of traces or of the wiki.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import atrex
from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.hardware.detect import describe, parse_device
from atrex.optimize.ask import Ask, sha256, shared_hash
from atrex.optimize.bundle import Answer, read_bundle, unpack, write_answer
from atrex.optimize.lab import Lab, LocalLab, UnitFailed
from atrex.optimize.model import BASELINE, Settings
from atrex.optimize.observe import worst_of
from atrex.optimize.promotion import Rule, decide
from atrex.optimize.store import KERNEL, PROBLEM
from atrex.optimize.validate import short_of_contest
from atrex.scoring.records import Status, UnitRecord

JUDGE, CONTEST, LOOK = "judge.jsonl", "contest.json", "look.json"
_CODE = ("dsls", "evaluate", "hardware", "problems", "roofline", "scoring")
MakeLab = Callable[[Settings, Path], Lab]


def serve(
    bundle: Path,
    out: Path,
    device: str | None = None,
    told: Callable[[str], None] = lambda line: None,
    make_lab: MakeLab = LocalLab,
) -> Answer:
    """Measure what `bundle` asks for on `device` (None: the campaign's) and write the answer to `out`.

    Raises UserError for a bundle that was altered, needs another chip or other shipped problems than there are here,
    and for an `out` that is there already.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; a measurement is not replaced, name another file")
    asked, files = read_bundle(bundle)
    device = device or asked.settings.device
    chip = _fitting(bundle, asked, device)
    started, began = now(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atrex-bundle-") as scratch:
        folder = Path(scratch)
        unpack(files, folder)
        problem = next(path for path in (folder / PROBLEM).iterdir())
        settings = asked.settings.model_copy(update={"device": device, "suite": str(problem)})
        lab = make_lab(settings, folder / "runs")
        told(f"{asked.what} of campaign {asked.campaign}: {settings.operator} in {settings.dsl} on {device} ({chip})")
        measured = _measure(asked, folder, lab, told)
        seeds = _seeds(folder / "runs")
    answer = Answer(
        bundle=asked.id, campaign=asked.campaign, step=asked.step, number=asked.number, atrex=atrex.__version__,
        judge_code=judge_code(), device=device, device_name=describe(device).name, chip=chip, versions=_versions(),
        seeds=seeds, started=started, seconds=time.monotonic() - began,
        files={name: sha256(content) for name, content in measured.items()},
    ).sealed(asked.key)  # fmt: skip
    write_answer(out, answer, measured)
    return answer


def judge_code() -> str:
    """SHA-256 of the source that judges here, so that answers of different judges can be told apart."""
    root = Path(atrex.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(each for folder in _CODE for each in (root / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{sha256(path.read_bytes())}\n".encode())
    return digest.hexdigest()


def _fitting(bundle: Path, asked: Ask, device: str) -> str:
    """The chip of the device. Raises UserError where the campaign's measurements cannot be made."""
    wanted, found = asked.settings, describe(device)
    if parse_device(device)[0] != parse_device(wanted.device)[0] or found.chip != wanted.chip:
        raise UserError(
            f"{bundle}: asks for {wanted.chip}; {device} is {found.name} ({found.chip or 'no listed chip'})"
        )
    if asked.shared != shared_hash():
        raise UserError(
            f"{bundle}: the shipped problems there and here are not the same (atrex {asked.atrex} there, "
            f"{atrex.__version__} here); install the same atrex on both machines"
        )
    return found.chip


def _measure(asked: Ask, folder: Path, lab: Lab, told: Callable[[str], None]) -> dict[str, bytes]:
    subject, found = folder / asked.subject, {}
    if asked.step == "evidence":
        found[LOOK] = _look(lab, subject, asked.shape)
        return found
    told(f"judging {len(asked.settings.shapes)} shapes")
    records = lab.judge(subject)
    passed = sum(record.verdict.status is Status.PASSED for record in records)
    told(f"  {passed} of {len(records)} units pass")
    found[JUDGE] = "".join(record.model_dump_json() + "\n" for record in records).encode()
    if asked.step == "pack" or short_of_contest(records, asked.earlier):
        return found
    promoted = True
    if asked.number != BASELINE:
        promoted, contest = _contest(asked, folder / KERNEL, subject, lab, told)
        found[CONTEST] = _json(contest)
    if promoted:  # the next iteration will want to see it: that saves a way
        found[LOOK] = _look(lab, subject, worst_of(records))
    return found


def _contest(
    asked: Ask, incumbent: Path, candidate: Path, lab: Lab, told: Callable[[str], None]
) -> tuple[bool, dict[str, Any]]:
    """Whether the candidate would be promoted, and every round as it was measured."""
    rounds: list[dict[str, Any]] = []
    stopped = None
    try:
        with lab.contest(incumbent, candidate) as measure:

            def kept(shapes=None):
                times = dict(measure(shapes))
                rounds.append({"shapes": None if shapes is None else list(shapes), "times": times})
                told(f"  round {len(rounds)}")
                return times

            promoted = decide(kept, asked.decision, Rule(error=asked.settings.error)).promoted
    except UnitFailed as failed:
        promoted = False
        stopped = {"record": failed.record.model_dump(mode="json"), "of_candidate": failed.of_candidate}
    return promoted, {"rounds": rounds, "stopped": stopped}


def _look(lab: Lab, source: Path, shape: str) -> bytes:
    about: dict[str, Any] = {"sha256": sha256(source.read_bytes()), "shape": shape, "evidence": None, "fault": None}
    try:
        seen = lab.look(source, shape)
    except UserError as fault:
        about["fault"] = str(fault)
    else:
        about["evidence"] = seen.model_dump(mode="json") if seen else None
    return _json(about)


def _seeds(runs: Path) -> dict[str, str]:
    """Commitments and secrets of the judgements that left a run directory."""
    loaded = [json.loads(path.read_text()) for path in sorted(runs.glob("*/run.json"))]
    return {run["seeds_commitment"]: run["seeds"] for run in loaded if run.get("seeds")}


def _versions() -> dict[str, str]:
    from atrex.evaluate.run import versions

    found = versions()
    try:
        return found | {"triton": version("triton")}
    except PackageNotFoundError:
        return found


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()


def read_records(content: bytes) -> list[UnitRecord]:
    """The judge's records of an answer. Raises pydantic.ValidationError."""
    return [UnitRecord.model_validate_json(line) for line in content.splitlines() if line]
