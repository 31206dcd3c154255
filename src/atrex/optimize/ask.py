"""What a campaign's next step needs from a device, as a document that can travel: content by hash, nothing by path.

One question a step. It is kept under `measurements/` until its answer is in, so that asking twice asks the same, and an
answer to anything else is recognized.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

import atrex
from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.files import write
from atrex.optimize.field import Earlier
from atrex.optimize.machine import Position, words
from atrex.optimize.model import BASELINE, Settings
from atrex.optimize.observe import worst_of
from atrex.optimize.store import KERNEL, PROBLEM, Campaign, parse
from atrex.optimize.validate import decisions_of, earlier_of
from atrex.problems.load import SHIPPED, load_suite

CANDIDATE = "candidate.py"
Asked = Literal["evidence", "validation", "pack"]


class Ask(BaseModel):
    """One question. `files` are SHA-256 by name of all that travels with it; `key` seals the answer.

    evidence: a look at the kernel on `shape`. validation: the judge on the candidates (of `attempts`, none named for a
    single one) and, beyond the baseline, the heats among them and the contest of one of them with the kernel as the
    campaign's `decision`-th; `earlier` and `sources` are artifacts and sources that were measured, with their attempt.
    pack: the judge on the kernel. `shared` is the hash of what the shipped problems have in common.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    campaign: str
    step: Asked
    number: int
    attempts: list[int] = Field(default_factory=list)
    key: str
    settings: Settings
    shape: str | None = None
    decision: int | None = None
    earlier: dict[str, int] = Field(default_factory=dict)
    sources: dict[str, int] = Field(default_factory=dict)
    files: dict[str, str]
    shared: str
    atrex: str
    created: str

    @property
    def text(self) -> str:
        """The document as it is stored and as it travels."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def id(self) -> str:
        return sha256(self.text.encode())

    @property
    def what(self) -> str:
        more = f" ({len(self.attempts)} attempts)" if self.attempts else ""
        return f"the {self.step} of iteration {self.number}{more}"

    @property
    def subjects(self) -> dict[int, str]:
        """Names of the files that are judged or looked at, by the number of the attempt."""
        if self.attempts:
            return {number: candidate_name(number) for number in self.attempts}
        return {self.number: CANDIDATE if self.step == "validation" else KERNEL}

    @property
    def digests(self) -> dict[int, str]:
        """SHA-256 of those files."""
        return {number: self.files[name] for number, name in self.subjects.items()}

    @property
    def before(self) -> Earlier:
        """What the campaign has measured."""
        return Earlier(self.earlier, self.sources, self.settings.deduplicate and self.decision is not None)

    def same(self, other: Ask) -> bool:
        """Whether both ask the same of the same content."""
        drawn = {"key", "created"}
        return self.model_dump(exclude=drawn) == other.model_dump(exclude=drawn)


def candidate_name(number: int) -> str:
    """Under which one of several candidates travels."""
    return f"candidate-{number:04d}.py"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def campaign_id(campaign: Campaign) -> str:
    """What tells a campaign from others: the hash of its settings, with the time when it was begun."""
    return sha256(campaign.settings.model_dump_json().encode())[:16]


def shared_hash() -> str:
    """SHA-256 of the modules beside the shipped problems that their references and inputs import."""
    found = {path.name: sha256(path.read_bytes()) for path in SHIPPED.glob("*.py")}
    return sha256(repr(sorted(found.items())).encode())


def ask(campaign: Campaign, at: Position) -> tuple[Ask, dict[str, bytes]]:
    """The question of a step that waits for a device, and the files that travel with it. Asked before: that one again.

    Raises UserError for a step that needs no device.
    """
    steps: Mapping[str, Asked] = {"evidence": "evidence", "validation": "validation", "done": "pack"}
    if at.step not in steps:
        raise UserError(f"{campaign.path}: the campaign waits for {words(at)}; there is nothing to measure")
    step = steps[at.step]
    if step == "pack" and campaign.incumbent is None:
        raise UserError(f"{campaign.path}: it has ended without an accepted kernel; there is nothing to measure")
    number = campaign.incumbent.number if step == "pack" else at.number
    files = problem_files(campaign)
    if campaign.incumbent is not None:
        files[KERNEL] = campaign.kernel.read_bytes()
    attempts = campaign.attempts(number) if step == "validation" else []
    if len(attempts) > 1:
        files |= {candidate_name(each): campaign.candidate(each).read_bytes() for each in attempts}
    elif step == "validation":
        files[CANDIDATE] = campaign.candidate(number).read_bytes()
    contest = step == "validation" and number != BASELINE
    before = earlier_of(campaign) if contest and campaign.settings.deduplicate else Earlier()
    new = Ask(
        campaign=campaign_id(campaign),
        step=step,
        number=number,
        attempts=attempts if len(attempts) > 1 else [],
        key=secrets.token_hex(32),
        settings=campaign.settings.model_copy(update={"suite": None}),  # a path means nothing on another machine
        shape=worst_of(campaign.judged(campaign.incumbent.number)) if step == "evidence" else None,
        decision=decisions_of(campaign) + 1 if contest else None,
        earlier=dict(before.artifacts),
        sources=dict(before.sources),
        files={name: sha256(content) for name, content in sorted(files.items())},
        shared=shared_hash(),
        atrex=atrex.__version__,
        created=now(),
    )
    old = pending(campaign, at)
    if old is not None and old.same(new):
        return old, files
    write(_path(campaign, step, number), new.text)
    return new, files


def pending(campaign: Campaign, at: Position) -> Ask | None:
    """The question that was asked for the step at which a campaign stands, None when none was."""
    incumbent = campaign.incumbent
    step, number = ("pack", incumbent.number if incumbent else 0) if at.step == "done" else (at.step, at.number)
    path = _path(campaign, step, number)
    return parse(path, Ask) if path.exists() else None


def answered(campaign: Campaign, asked: Ask) -> None:
    """Take a question back: its answer is in."""
    _path(campaign, asked.step, asked.number).unlink(missing_ok=True)


def _path(campaign: Campaign, step: str, number: int) -> Path:
    return campaign.path / "measurements" / f"{number:04d}-{step}.ask.json"


def problem_files(campaign: Campaign) -> dict[str, bytes]:
    """All files of the campaign's problem folder, by the names that they travel under."""
    settings = campaign.settings
    folder = load_suite(settings.suite_path).problem(settings.operator).folder.resolve()
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
    return {f"{PROBLEM}/{folder.name}/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in found}
