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
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import atrex
from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.hardware.detect import describe, parse_device
from atrex.optimize.ask import Ask, sha256, shared_hash
from atrex.optimize.bundle import Answer, read_bundle, unpack, write_answer
from atrex.optimize.field import Heat, narrow, run_heat, short_of_contest
from atrex.optimize.lab import Lab, LocalLab, UnitFailed
from atrex.optimize.model import Settings
from atrex.optimize.observe import worst_of
from atrex.optimize.patience import bounds_of
from atrex.optimize.promotion import Round, Rule, decide
from atrex.optimize.store import KERNEL, PROBLEM
from atrex.scoring.records import Status, UnitRecord

JUDGE, HEATS, CONTEST, LOOK = "judge.jsonl", "heats.json", "contest.json", "look.json"
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
    if asked.step == "evidence":
        return {LOOK: _look(lab, folder / KERNEL, asked.shape)}
    measuring = _Measuring(asked, folder, lab, told)
    if asked.decision is None:
        if (
            not short_of_contest(measuring.judged(asked.number), measuring.texts[asked.number], {})
            and asked.step != "pack"
        ):
            measuring.look(asked.number)
        return measuring.found
    try:
        chosen = narrow(measuring.texts, asked.before, measuring.judged, measuring.heat).chosen
    except UnitFailed:  # the incumbent's: it is in what was measured
        return measuring.found
    if chosen is not None and measuring.contest(chosen):
        measuring.look(chosen)  # the next iteration will want to see it: that saves a way
    return measuring.found


class _Measuring:
    """What is measured for a question; `found` are the files of the answer."""

    def __init__(self, asked: Ask, folder: Path, lab: Lab, told: Callable[[str], None]):
        self._asked, self._lab, self._told = asked, lab, told
        self._kernel = folder / KERNEL
        self._sources = {number: folder / name for number, name in asked.subjects.items()}
        self.texts = {number: path.read_bytes().decode() for number, path in self._sources.items()}
        self._records: dict[int, list[UnitRecord]] = {}
        self._heats: dict[str, dict[str, Any]] = {}
        self.found: dict[str, bytes] = {}

    def judged(self, number: int) -> list[UnitRecord]:
        which = f"{len(self._records) + 1} of {len(self._sources)}: " if len(self._sources) > 1 else ""
        self._told(f"{which}judging {len(self._asked.settings.shapes)} shapes")
        records = self._records[number] = self._lab.judge(self._sources[number])
        passed = sum(record.verdict.status is Status.PASSED for record in records)
        self._told(f"  {passed} of {len(records)} units pass")
        every = [record.model_dump_json() + "\n" for found in self._records.values() for record in found]
        self.found[JUDGE] = "".join(every).encode()
        return records

    def heat(self, number: int) -> Heat:
        self._told(f"heat of attempt {number}")
        rounds = _Rounds(self._lab.heat(self._kernel, self._sources[number]), self._told)
        try:
            return run_heat(rounds)
        finally:
            self._heats[self._asked.digests[number]] = rounds.document
            self.found[HEATS] = _json(self._heats)

    def contest(self, number: int) -> bool:
        """Whether the candidate would be promoted."""
        self._told("contest" + (f" of attempt {number}" if self._asked.attempts else ""))
        rounds = _Rounds(self._lab.contest(self._kernel, self._sources[number]), self._told)
        try:
            with rounds as measure:
                settings = self._asked.settings
                decision = decide(measure, self._asked.decision, Rule(error=settings.error), bounds_of(settings))
                rounds.gave_up = decision.reason
                return decision.promoted
        except UnitFailed:
            return False
        finally:
            self.found[CONTEST] = _json(rounds.document | {"candidate": self._asked.digests[number]})

    def look(self, number: int) -> None:
        self.found[LOOK] = _look(self._lab, self._sources[number], worst_of(self._records[number]))


class _Rounds:
    """A contest whose rounds are kept as they were measured, and what ended it."""

    def __init__(self, contest: AbstractContextManager[Round], told: Callable[[str], None]):
        self._contest, self._told = contest, told
        self._rounds: list[dict[str, Any]] = []
        self._stopped: dict[str, Any] | None = None
        self.gave_up: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        return {"rounds": self._rounds, "stopped": self._stopped, "gave_up": self.gave_up}

    def __enter__(self) -> Round:
        measure = self._contest.__enter__()

        def kept(shapes=None):
            times = dict(measure(shapes))
            self._rounds.append({"shapes": None if shapes is None else list(shapes), "times": times})
            self._told(f"  round {len(self._rounds)}")
            return times

        return kept

    def __exit__(self, kind, error, trace) -> bool | None:
        if isinstance(error, UnitFailed):
            self._stopped = {"record": error.record.model_dump(mode="json"), "of_candidate": error.of_candidate}
        return self._contest.__exit__(kind, error, trace)


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
