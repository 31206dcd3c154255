"""On the campaign's machine: what came back from the device, taken in by the supervisor and by nobody else.

An answer becomes `measurements/NNNN-STEP-*.served.json`. The supervisor then takes its usual steps, with a lab that
says what was measured: verdicts, promotions and evidence are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from atrex.errors import UserError, first_fault
from atrex.evaluate.seeds import Seeds
from atrex.optimize.ask import Ask, answered, campaign_id, pending, problem_files, sha256
from atrex.optimize.bundle import Answer, read_answer
from atrex.optimize.field import repeats
from atrex.optimize.lab import Lab, LocalLab, Pending, UnitFailed
from atrex.optimize.machine import Position, Supervisor, position, words
from atrex.optimize.patience import GaveUp, noisy
from atrex.optimize.promotion import Round
from atrex.optimize.serve import CONTEST, HEATS, JUDGE, LOOK, read_records
from atrex.optimize.store import PROBLEM, Campaign, parse
from atrex.optimize.validate import forget_measured
from atrex.profiling.evidence import Evidence
from atrex.scoring.comparison import Pair
from atrex.scoring.records import UnitRecord


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MeasuredRound(_Form):
    """One round of a contest: the shapes that were asked for (None: all), times of incumbent and candidate."""

    shapes: list[str] | None
    times: dict[str, Pair]


class StoppedUnit(_Form):
    record: UnitRecord
    of_candidate: bool


class Contest(_Form):
    """A contest or a heat with the incumbent. `candidate` is the SHA-256 of whose it was, where the answer says so.

    `gave_up` says why a contest was left undecided there.
    """

    rounds: list[MeasuredRound]
    stopped: StoppedUnit | None = None
    candidate: str | None = None
    gave_up: str | None = None


class Heats(RootModel[dict[str, Contest]]):
    """By the SHA-256 of the candidate."""


class Look(_Form):
    """What a profiler saw of the source of that hash on a shape, or why it did not."""

    sha256: str
    shape: str
    evidence: Evidence | None
    fault: str | None


class Served(_Form):
    """One answer as the campaign keeps it, with the question and the hash of the answer's document."""

    ask: Ask
    answer: Answer
    digest: str
    judge: list[UnitRecord] | None = None
    heats: dict[str, Contest] = Field(default_factory=dict)
    contest: Contest | None = None
    look: Look | None = None

    @property
    def file(self) -> str:
        return f"{self.ask.number:04d}-{self.ask.step}-{self.answer.bundle[:8]}.served.json"


class ServedLab:
    """Answers from what other machines have measured. Raises Pending for a measurement that has not come."""

    until: float | None = None

    def __init__(self, campaign: Campaign):
        self._campaign = campaign

    def judge(self, source: Path) -> list[UnitRecord]:
        content = sha256(source.read_bytes())
        return [record for record in self._answer(source).judge if record.candidate_sha256 == content]

    def contest(self, incumbent: Path, candidate: Path) -> AbstractContextManager[Round]:
        contest, content = self._answer(candidate).contest, sha256(candidate.read_bytes())
        if contest is None or contest.candidate not in (None, content):
            raise UserError(
                f"{self._campaign.path}: the measurement holds no contest of {candidate.name} of iteration "
                f"{candidate.parent.name}; serve the bundle with this atrex"
            )
        return self._replay(contest)

    def heat(self, incumbent: Path, candidate: Path) -> AbstractContextManager[Round]:
        found = self._answer(candidate).heats.get(sha256(candidate.read_bytes()))
        if found is None:
            raise UserError(f"{self._campaign.path}: the measurement lacks a heat; serve the bundle with this atrex")
        return self._replay(found)

    @contextmanager
    def _replay(self, contest: Contest) -> Iterator[Round]:
        left = list(contest.rounds)

        def measure(shapes=None):
            if left and left[0].shapes == (None if shapes is None else list(shapes)):
                return left.pop(0).times
            if not left and contest.stopped:
                raise UnitFailed(contest.stopped.record, contest.stopped.of_candidate)
            if not left and contest.gave_up:
                raise GaveUp(contest.gave_up)
            raise UserError(
                f"{self._campaign.path}: the contest was measured for another rule of decision; serve the bundle with "
                "this atrex"
            )

        yield measure

    def look(self, source: Path, shape: str) -> Evidence | None:
        wanted = sha256(source.read_bytes())
        for served in served_of(self._campaign):
            if served.look and (served.look.sha256, served.look.shape) == (wanted, shape):
                if served.look.fault:
                    raise UserError(served.look.fault)
                return served.look.evidence
        raise self._pending()

    @property
    def seconds(self) -> float | None:
        """What the step at hand took on the device."""
        at = position(self._campaign)
        asked = pending(self._campaign, at)
        found = [each for each in served_of(self._campaign) if asked and each.ask.id == asked.id]
        return found[0].answer.seconds if found else None

    def _answer(self, source: Path) -> Served:
        at = position(self._campaign)
        asked, content = pending(self._campaign, at), sha256(source.read_bytes())
        for each in served_of(self._campaign):
            # A kernel that is packed was asked about after the end, and may be packed again.
            current = each.ask.step == "pack" if at.step == "done" else asked is not None and each.ask.id == asked.id
            if current and each.judge is not None and content in each.ask.digests.values():
                return each
        raise self._pending()

    def _pending(self) -> Pending:
        path = self._campaign.path
        return Pending(
            f"{path}: waits for the device; atrex optimize bundle {path} OUT.tar asks, and serve-bundle measures there"
        )


def lab_of(campaign: Campaign) -> Lab:
    """Where a campaign measures: on a device of this machine, or on another one by bundles."""
    return ServedLab(campaign) if campaign.settings.elsewhere else LocalLab(campaign.settings)


def served_of(campaign: Campaign) -> list[Served]:
    """All answers that a campaign has taken in, by step."""
    return [parse(path, Served) for path in sorted((campaign.path / "measurements").glob("*.served.json"))]


def ingest(campaign: Campaign, path: Path, told: Callable[[str], None] = lambda line: None) -> bool:
    """Take in an answer and go on to the next step that waits; whether it was new.

    Raises UserError, and changes nothing, for an answer that was altered, belongs to another bundle, step or campaign,
    or says that the incumbent itself no longer passes.
    """
    answer, digest, files = read_answer(path)
    if answer.campaign != campaign_id(campaign):
        raise UserError(f"{path}: for campaign {answer.campaign}; {campaign.path} is {campaign_id(campaign)}")
    at = position(campaign)
    asked = pending(campaign, at)
    earlier = [each for each in served_of(campaign) if each.answer.bundle == answer.bundle]
    if earlier and earlier[0].digest != digest:
        raise UserError(f"{path}: another measurement of the same bundle is in already; {earlier[0].file} stays")
    if earlier and (asked is None or asked.id != answer.bundle):
        if (at.step, answer.step) == ("memory", "validation"):  # killed when verdicts were in, and records not yet
            _go_on(campaign, told)
        return False
    _belongs(path, campaign, at, asked, answer)
    served = _checked(path, campaign, asked, answer, digest, files)
    if asked.step == "validation":  # all of it follows from one answer, whatever was measured on the way
        forget_measured(campaign, list(asked.subjects))
    if not earlier:
        campaign.measured(served.file, served.model_dump_json(indent=1))
    try:
        if asked.step != "pack":
            _go_on(campaign, told)
    except UserError:
        if position(campaign) == at:  # nothing came of it: another measurement may be taken in
            campaign.forget(served.file)
            if asked.step == "validation":
                forget_measured(campaign, list(asked.subjects))
        raise
    answered(campaign, asked)
    return True


def _go_on(campaign: Campaign, told: Callable[[str], None]) -> None:
    with suppress(Pending):  # the next step may need the device too
        Supervisor(campaign, ServedLab(campaign), told).advance()


def _belongs(path: Path, campaign: Campaign, at: Position, asked: Ask | None, answer: Answer) -> None:
    said = f"{path}: the {answer.step} of iteration {answer.number}"
    if asked is None:
        raise UserError(f"{said}; the campaign has no open question, it waits for {words(at)}")
    if (asked.step, asked.number) != (answer.step, answer.number):
        raise UserError(f"{said}; the campaign asked for {asked.what}")
    if asked.id != answer.bundle:
        raise UserError(f"{said}, but of bundle {answer.bundle[:8]}; the campaign asked with {asked.id[:8]}")
    if not answer.genuine(asked.key):
        raise UserError(f"{path}: result.json: its seal does not hold; the file was altered")
    for number, digest in asked.digests.items():
        subject = campaign.candidate(number) if asked.step == "validation" else campaign.kernel
        if sha256(subject.read_bytes()) != digest:
            raise UserError(f"{said}: {subject} is not what was measured; bundle it again")
    now = {name: sha256(content) for name, content in problem_files(campaign).items()}
    if now != {name: digest for name, digest in asked.files.items() if name.startswith(f"{PROBLEM}/")}:
        raise UserError(f"{said}: the problem's files are not those that it was measured with; bundle it again")


def _checked(
    path: Path, campaign: Campaign, asked: Ask, answer: Answer, digest: str, files: dict[str, bytes]
) -> Served:
    """The answer in its form, about what was asked. Raises UserError."""
    settings = campaign.settings
    try:
        judge = read_records(files[JUDGE]) if JUDGE in files else None
        heats = Heats.model_validate_json(files[HEATS]).root if HEATS in files else {}
        contest = Contest.model_validate_json(files[CONTEST]) if CONTEST in files else None
        look = Look.model_validate_json(files[LOOK]) if LOOK in files else None
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}; serve the bundle with the atrex that made it") from None
    needed = look if asked.step == "evidence" else judge
    if needed is None:
        raise UserError(f"{path}: holds nothing of what was asked; serve the bundle again")
    contents = set(asked.digests.values())
    if look and look.sha256 not in contents:
        raise UserError(f"{path}: {LOOK}: about another kernel than was asked for")
    if answer.chip != settings.chip:
        raise UserError(f"{path}: measured on {answer.chip}; the campaign is on {settings.chip}")
    for record in judge or ():
        about = (record.operator, record.chip)
        if record.candidate_sha256 not in contents or about != (settings.operator, settings.chip):
            raise UserError(f"{path}: {JUDGE}: unit {record.operator}/{record.shape} is not of what was asked for")
    again = repeats(asked.digests, asked.before)
    for number, content in asked.digests.items():
        shapes = {record.shape for record in judge or () if record.candidate_sha256 == content}
        if judge is not None and number not in again and set(settings.shapes) - shapes:
            raise UserError(f"{path}: {JUDGE}: not every shape of the campaign is in it; serve the bundle again")
    for commitment, secret in answer.seeds.items():
        if Seeds(bytes.fromhex(secret)).commitment != commitment:
            raise UserError(f"{path}: result.json: seeds: not what was committed to")
    rounds = [held for held in heats.values() if not (held.stopped and noisy(held.stopped.record))]
    for held in (*rounds, *([contest] if contest else [])):
        if held.stopped and not held.stopped.of_candidate:
            failed = held.stopped.record
            raise UserError(f"{path}: the incumbent failed on {failed.shape}: {failed.verdict.reason}; serve it again")
    return Served(ask=asked, answer=answer, digest=digest, judge=judge, heats=heats, contest=contest, look=look)
