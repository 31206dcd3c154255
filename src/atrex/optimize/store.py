"""A campaign on disk. Artifacts appear whole or not at all, and where the campaign stands follows from those there are.

    campaign.json            settings, never changed
    roofline.json            what the hardware allows
    iterations/NNNN/         evidence.json knowledge.json plan.json candidate.py validation.json stop.json
    memory/NNNN.json         one record per attempt, 0 is the baseline
    measurements/NNNN*.json  what the judge and the contest measured
    masks.jsonl              restarts, appended to
    widths.jsonl             how many attempts an iteration makes, where that was changed; appended to
    kernel/                  a git repository with the incumbent, a tag per accepted iteration
    problem/                 of a bare kernel: the folder that was made of its reference

An iteration with several attempts takes as many numbers: evidence, knowledge and stop are in the first one's folder.
All of it belongs to the supervisor. An agent sees copies, and gives back one file.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from atrex.errors import UserError, first_fault
from atrex.files import write
from atrex.optimize.model import (
    BASELINE,
    Closed,
    Evidence,
    Knowledge,
    Mask,
    Plan,
    Record,
    Roofline,
    Settings,
    Stop,
    Validation,
    Width,
)
from atrex.scoring.records import UnitRecord

Form = TypeVar("Form", bound=BaseModel)
KERNEL, PROBLEM = "kernel.py", "problem"
_SETTINGS, _ROOFLINE, _MASKS, _WIDTHS = "campaign.json", "roofline.json", "masks.jsonl", "widths.jsonl"
STAGES: dict[str, type[BaseModel]] = {
    "evidence": Evidence, "knowledge": Knowledge, "plan": Plan, "closed": Closed, "validation": Validation,
    "stop": Stop,
}  # fmt: skip


class Campaign:
    """An existing campaign directory. Raises UserError for one that is none, or that was damaged."""

    def __init__(self, path: Path):
        self.path = path
        if not (path / _SETTINGS).is_file():
            raise UserError(f"{path}: no {_SETTINGS}; expected a campaign that atrex optimize init has made")
        self.settings = self._read(path / _SETTINGS, Settings)

    @classmethod
    def create(cls, path: Path, settings: Settings, roofline: Roofline) -> Campaign:
        """Start a campaign in an empty or new folder. Raises UserError."""
        if path.exists() and any(each.name != PROBLEM for each in path.iterdir()):
            raise UserError(f"{path}: not empty; a campaign needs a folder of its own")
        if shutil.which("git") is None:
            raise UserError("git is not on PATH: a campaign keeps its kernels in a repository; install git")
        try:
            for folder in ("iterations", "memory", "measurements", "kernel"):
                (path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        _git(path / "kernel", "init", "-q", "-b", "main")
        write(path / _ROOFLINE, roofline.model_dump_json(indent=1))
        write(path / _SETTINGS, settings.model_dump_json(indent=1))  # last: from here on it is a campaign
        return cls(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the campaign for one supervisor. Raises UserError while another one works on it."""
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path}: another command is working on this campaign") from None
            yield

    # -- artifacts -------------------------------------------------------------------------------------------------

    @property
    def roofline(self) -> Roofline:
        return self._read(self.path / _ROOFLINE, Roofline)

    def iteration(self, number: int) -> Path:
        return self.path / "iterations" / f"{number:04d}"

    def has(self, number: int, stage: str) -> bool:
        return (self.iteration(number) / _file(stage)).exists()

    def put(self, number: int, stage: str, content: BaseModel | str) -> None:
        """Leave an artifact of an iteration. One that is there already stays: no step is done twice."""
        path = self.iteration(number) / _file(stage)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content if isinstance(content, str) else content.model_dump_json(indent=1))

    def get(self, number: int, stage: str):
        """The artifact of a stage, of that stage's form. Raises UserError when it is missing or damaged."""
        return self._read(self.iteration(number) / _file(stage), STAGES[stage])

    def candidate(self, number: int) -> Path:
        return self.iteration(number) / _file("candidate")

    def drop(self, number: int, *stages: str) -> None:
        """Take back artifacts of the iteration at hand, that nothing was built on."""
        for stage in stages:
            (self.iteration(number) / _file(stage)).unlink(missing_ok=True)

    @property
    def numbers(self) -> list[int]:
        """Iterations that were begun, in order."""
        return sorted(int(path.name) for path in (self.path / "iterations").iterdir() if path.name.isdigit())

    # -- iterations and their attempts -----------------------------------------------------------------------------

    def first_of(self, number: int) -> int:
        """The first number of the iteration that an attempt belongs to."""
        while number > BASELINE and not (self.has(number, "evidence") or self.has(number, "stop")):
            number -= 1
        return number

    @property
    def step(self) -> int:
        """The first number of the iteration at hand, 0 for the baseline."""
        return self.first_of(self.numbers[-1]) if self.numbers else BASELINE

    def attempts(self, first: int) -> list[int]:
        """The planned attempts of an iteration."""
        found = []
        while self.has(number := first + len(found), "plan") and (not found or self.first_of(number) == first):
            found.append(number)
        return found

    @property
    def tried(self) -> int:
        """How many iterations beyond the baseline left records."""
        return len({self.first_of(record.number) for record in self.memory if record.number != BASELINE})

    def width(self, first: int) -> int:
        """How many attempts an iteration makes at most."""
        changed = [each.width for each in self._lines(_WIDTHS, Width) if each.since <= first]
        return changed[-1] if changed else self.settings.width

    def widen(self, width: Width) -> None:
        """From an iteration on, make another number of attempts."""
        self._append(_WIDTHS, width)

    # -- measurements ----------------------------------------------------------------------------------------------

    def measured(self, name: str, content: str) -> None:
        write(self._measurement(name), content)

    def measurement(self, name: str) -> str | None:
        """What was measured, None when it was not."""
        path = self._measurement(name)
        return path.read_text(encoding="utf-8") if path.exists() else None

    def forget(self, name: str) -> None:
        """Take back a measurement that nothing was built on."""
        self._measurement(name).unlink(missing_ok=True)

    def judged(self, number: int) -> list[UnitRecord]:
        """What the judge said of an attempt's candidate, a record a unit."""
        lines = self._measurement(f"{number:04d}-judge.jsonl").read_text().splitlines()
        return [UnitRecord.model_validate_json(line) for line in lines if line]

    def _measurement(self, name: str) -> Path:
        return self.path / "measurements" / name

    # -- memory ----------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> list[Record]:
        """All records, in order."""
        return [self._read(path, Record) for path in sorted((self.path / "memory").glob("[0-9]*.json"))]

    def remembers(self, number: int) -> bool:
        """Whether there is a record of an iteration."""
        return self._record(number).exists()

    def remember(self, record: Record) -> None:
        if not self.remembers(record.number):
            write(self._record(record.number), record.model_dump_json(indent=1))

    def _record(self, number: int) -> Path:
        return self.path / "memory" / f"{number:04d}.json"

    @property
    def incumbent(self) -> Record | None:
        """The record of the accepted kernel, None before there is a baseline."""
        accepted = [record for record in self.memory if record.accepted]
        return accepted[-1] if accepted else None

    def incumbent_before(self, number: int) -> Record | None:
        """The record of the kernel that an iteration with this first number set out from."""
        accepted = [record for record in self.memory if record.accepted and record.number < number]
        return accepted[-1] if accepted else None

    @property
    def masks(self) -> list[Mask]:
        return self._lines(_MASKS, Mask)

    def mask(self, mask: Mask) -> None:
        """Append a restart; one of a session that has one already is not appended again."""
        if all(each.session != mask.session for each in self.masks):
            self._append(_MASKS, mask)

    def _lines(self, name: str, form: type[Form]) -> list[Form]:
        path, found = self.path / name, []
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
            try:
                found.append(form.model_validate_json(line))
            except ValidationError as error:
                raise UserError(f"{path}:{number}: {first_fault(error)}") from None
        return found

    def _append(self, name: str, line: BaseModel) -> None:
        with (self.path / name).open("a") as file:
            file.write(line.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def session(self) -> int:
        """The agent's session: 0, and one more with every restart."""
        return max((mask.session for mask in self.masks), default=0)

    @property
    def visible(self) -> list[Record]:
        """What the agent of this session may see of the memory."""
        hidden = {number for mask in self.masks if mask.session == self.session for number in mask.hidden}
        return [record for record in self.memory if record.number not in hidden]

    # -- kernels ---------------------------------------------------------------------------------------------------

    def accept(self, number: int) -> None:
        """Commit a candidate as the incumbent, with a tag to come back to. Done already: nothing happens."""
        folder, tag = self.path / "kernel", "baseline" if number == 0 else f"iteration-{number:04d}"
        if _git(folder, "tag", "--list", tag):
            return
        shutil.copyfile(self.candidate(number), folder / KERNEL)
        _git(folder, "add", KERNEL)
        _git(folder, "commit", "-q", "--allow-empty", "-m", tag)
        _git(folder, "tag", tag)

    @property
    def kernel(self) -> Path:
        """The incumbent's source."""
        return self.path / "kernel" / KERNEL

    def _read(self, path: Path, form: type[Form]) -> Form:
        try:
            return form.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: missing; the campaign is damaged") from None
        except ValidationError as error:
            raise UserError(f"{path}: {first_fault(error)}") from None


def parse(path: Path, form: type[Form]) -> Form:
    """A form from a file that somebody else wrote. Raises UserError naming the file, the field and the fault."""
    try:
        return form.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path}: not JSON") from None
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None


def _file(stage: str) -> str:
    return "candidate.py" if stage == "candidate" else f"{stage}.json"


def _git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=atrex", "-c", "user.email=atrex@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{folder}: git {words[0]}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
