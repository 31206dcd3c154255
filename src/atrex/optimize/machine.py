"""The state machine of a campaign. Where it stands follows from the artifacts that are there, so a crash loses no step.

One iteration: evidence -> knowledge -> plan -> candidate -> validation -> memory -> stop. The supervisor makes all of
them but plan and candidate, which come from an agent or a person; each is refused while the one before it is missing.
An iteration has up to as many plans and candidates as its width, all of them from the same incumbent.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.optimize.dropout import POLICIES, draw
from atrex.optimize.field import said
from atrex.optimize.lab import IncumbentFailed, Lab, UnitFailed
from atrex.optimize.model import BASELINE, Closed, Mask, Plan, Record, Stop, Width
from atrex.optimize.observe import evidence, knowledge
from atrex.optimize.store import Campaign
from atrex.optimize.validate import validate

Step = Literal["baseline", "evidence", "knowledge", "plan", "candidate", "validation", "memory", "stop", "mask", "done"]
WAITS: frozenset[Step] = frozenset(("baseline", "plan", "candidate", "stop", "done"))
"""Steps that are not the supervisor's: it waits there."""


@dataclass(frozen=True)
class Position:
    """The next step, of which attempt; of what an iteration has once, that of its first one."""

    step: Step
    number: int


def position(campaign: Campaign) -> Position:
    """Where a campaign stands."""
    number = campaign.step
    if campaign.has(number, "stop"):
        what = campaign.get(number, "stop").what
        if what == "stop":
            return Position("done", number)
        if what == "restart" and all(mask.after != number for mask in campaign.masks):
            return Position("mask", number)
        return Position("evidence", number + max(1, len(campaign.attempts(number))))
    if number == BASELINE:
        if not campaign.has(number, "candidate"):
            return Position("baseline", number)
        if not campaign.has(number, "validation"):
            return Position("validation", number)
        return Position("evidence", 1) if campaign.remembers(number) else Position("memory", number)
    if not campaign.has(number, "evidence"):
        return Position("evidence", number)
    if not campaign.has(number, "knowledge"):
        return Position("knowledge", number)
    attempts = campaign.attempts(number)
    if len(attempts) < campaign.width(number) and not (attempts and campaign.has(number, "closed")):
        return Position("plan", number + len(attempts))
    for each in attempts:
        if not campaign.has(each, "candidate"):
            return Position("candidate", each)
    if not all(campaign.has(each, "validation") for each in attempts):
        return Position("validation", number)
    for each in attempts:
        if not campaign.remembers(each):
            return Position("memory", each)
    return Position("stop", number)


class Supervisor:
    """Moves a campaign on. Every method raises UserError for what the campaign does not wait for."""

    def __init__(self, campaign: Campaign, lab: Lab, told: Callable[[str], None] = lambda line: None):
        self.campaign, self.lab, self._told = campaign, lab, told
        self._until: float | None = None

    def bound(self, until: float) -> None:
        """Give up a contest that is not over then (time.monotonic())."""
        self._until = self.lab.until = until

    def advance(self) -> Position:
        """Do all steps up to the next one that is not the supervisor's; where that is."""
        while (at := position(self.campaign)).step not in WAITS:
            getattr(self, f"_{at.step}")(at.number)
        return at

    # -- what comes from outside -----------------------------------------------------------------------------------

    def submit(self, source: str) -> Record | None:
        """Take a kernel: the baseline, or the next candidate of a planned iteration. Its record, once there is one.

        None for a baseline that did not pass: it is put aside, and another one is waited for. None too while other
        candidates of the iteration are waited for.
        """
        at = self._expect("baseline", "candidate", "validation")
        found = self.submit_all(source)
        return next((record for record in found if record.number == at.number), None)

    def submit_all(self, *sources: str) -> list[Record]:
        """Take kernels: a candidate for each plan, in their order, or for as many as wait for one; validate them.

        The iteration's records, none while another candidate is waited for. Candidates that are there already are not
        replaced: handing in all of them again is harmless, and repeats a validation that was cut short.
        """
        at, campaign = self._expect("baseline", "candidate", "validation"), self.campaign
        first = campaign.first_of(at.number)
        attempts = campaign.attempts(first) or [BASELINE]
        waiting = [number for number in attempts if not campaign.has(number, "candidate")]
        taken = attempts if len(sources) == len(attempts) else waiting
        if not 0 < len(sources) <= len(taken):
            raise UserError(f"submit: {len(sources)} kernels; {words(at)} is waited for, {len(waiting)} in all")
        given = list(zip(taken, sources, strict=False))
        for number, source in given:
            there = campaign.candidate(number)
            if there.exists() and there.read_text(encoding="utf-8").rstrip("\n") != source.rstrip("\n"):
                raise UserError(f"submit: attempt {number} has another kernel already; hand in those that wait for one")
        for number, source in given:
            campaign.put(number, "candidate", source)
        self.advance()
        return [record for record in campaign.memory if record.number in attempts]

    def plan(self, *plans: Plan, more: bool = False) -> None:
        """Take the plans of an iteration, one an attempt. With `more`, others may follow up to the iteration's width.

        Refused: cards that do not exist, figures without a card, more plans than the width, with `more` one that is
        there already.
        """
        at, campaign = self._expect("plan"), self.campaign
        first = campaign.first_of(at.number)
        there = [campaign.get(number, "plan") for number in campaign.attempts(first)]
        new = [plan for i, plan in enumerate(plans) if plan not in there and plan not in plans[:i]]
        if more and len(new) < len(plans):
            raise UserError("plan: another attempt of this iteration has the same plan; plan another change")
        width = campaign.width(first)
        if len(there) + len(new) > width or not (there or new):
            raise UserError(f"plan: {len(there) + len(new)} plans; an iteration of this campaign takes 1 to {width}")
        for plan in new:
            self._stands(plan)
        for i, plan in enumerate(new):
            campaign.put(first + len(there) + i, "plan", plan)
        if not more:
            self.close("all plans are there")

    def close(self, reason: str) -> None:
        """No more plans are to come for the iteration at hand. Raises UserError while there is none."""
        at = position(self.campaign)
        if at.step == "plan":
            first = self.campaign.first_of(at.number)
            attempts = len(self.campaign.attempts(first))
            if attempts == 0:
                raise UserError(f"{self.campaign.path}: iteration {first} has no plan yet")
            self.campaign.put(first, "closed", Closed(attempts=attempts, reason=reason))

    def widen(self, width: int) -> None:
        """Make up to so many attempts an iteration, from the next one on that has no plan yet."""
        at, first = position(self.campaign), self.campaign.step
        unplanned = at.step in ("evidence", "knowledge") or (at.step == "plan" and at.number == first)
        since = at.number if unplanned else first + 1
        if self.campaign.width(since) != width:
            self.campaign.widen(Width(since=since, width=width, created=now()))

    def _stands(self, plan: Plan) -> None:
        from atrex.wiki.hardware import sheets
        from atrex.wiki.load import card_files

        known = {path.stem for path in card_files()} | set(sheets())
        for card in [*plan.cards, *plan.figures.values()]:
            if card not in known:
                raise UserError(f"plan: cards: {card!r} is no card of the wiki; atrex wiki search finds them")
        if not plan.cards:
            raise UserError("plan: cards: none is named; a plan stands on cards that were opened")

    def no_direction(self, reason: str) -> Stop:
        """The agent sees no direction left: restart with part of the memory hidden, or stop when no restart is left.

        With plans of the iteration at hand there already, it goes on with those.
        """
        at = self._expect("plan", "stop")
        if at.step == "plan" and self.campaign.attempts(self.campaign.first_of(at.number)):
            self.close(reason)
            return Stop(what="continue", reason=reason)
        settings, left = self.campaign.settings, self.campaign.settings.restarts - self.campaign.session
        stop = Stop(what="restart" if left > 0 else "stop", reason=reason)
        self.campaign.put(at.number, "stop", stop)
        self._told(f"{stop.what}: {reason}" + (f" ({settings.policy})" if left > 0 else ""))
        self.advance()
        return stop

    def go_on(self) -> Stop:
        """The agent's stop check says that there is more to try. External bounds are looked at first."""
        at = self._expect("stop")
        stop = self._external() or Stop(what="continue", reason="more to try")
        self.campaign.put(at.number, "stop", stop)
        return stop

    def stop(self, reason: str) -> None:
        """End the campaign, at whatever step it is."""
        at = position(self.campaign)
        if at.step == "done":
            return
        if self.campaign.incumbent is None:
            raise UserError("no baseline yet: there is nothing to stop")
        if at.step == "mask":
            self._mask(at.number)
            at = position(self.campaign)
        number = at.number if at.step == "evidence" else self.campaign.first_of(at.number)
        self.campaign.put(max(number, 1), "stop", Stop(what="stop", reason=reason, external=True))

    def _expect(self, *steps: Step) -> Position:
        at = position(self.campaign)
        if at.step not in steps:
            raise UserError(f"{self.campaign.path}: the campaign waits for {words(at)}, not for {' or '.join(steps)}")
        return at

    # -- the supervisor's steps ------------------------------------------------------------------------------------

    def _evidence(self, number: int) -> None:
        self.campaign.put(number, "evidence", evidence(self.campaign, self.campaign.incumbent, self.lab))

    def _knowledge(self, number: int) -> None:
        self.campaign.put(number, "knowledge", knowledge(self.campaign, self.campaign.get(number, "evidence")))

    def _validation(self, number: int) -> None:
        numbers = [BASELINE] if number == BASELINE else self.campaign.attempts(number)
        try:
            for each, found in validate(self.campaign, numbers, self.lab, self._until, self._told):
                if number == BASELINE and not found.accepted:
                    self._told(f"baseline: {found.outcome}: {found.reason}")
                    self._put_aside(found.outcome, found.model_dump_json(indent=1))
                    return
                self.campaign.put(each, "validation", found)
        except UnitFailed as failed:
            raise IncumbentFailed(
                f"{self.campaign.path}: the incumbent itself failed on shape {failed.record.shape} "
                f"({said(failed.record)}); nothing is decided and nothing is lost, the same command tries again"
            ) from None

    def _put_aside(self, outcome: str, why: str) -> None:
        """Keep a kernel that is no baseline; a correct fallback as vanilla.py, for comparison."""
        aside = self.campaign.path / "aside"
        aside.mkdir(exist_ok=True)
        name = "vanilla" if outcome == "fallback" else f"attempt-{len(list(aside.glob('*.py'))):04d}"
        shutil.copyfile(self.campaign.candidate(BASELINE), aside / f"{name}.py")
        (aside / f"{name}.json").write_text(why + "\n")
        self.campaign.drop(BASELINE, "candidate")

    def _memory(self, number: int) -> None:
        campaign = self.campaign
        validation = campaign.get(number, "validation")
        incumbent = campaign.incumbent_before(campaign.first_of(number))
        if validation.accepted:
            campaign.accept(number)
        record = Record(
            number=number,
            incumbent=incumbent.number if incumbent else None,
            plan=campaign.get(number, "plan") if number != BASELINE else None,
            validation=validation,
            session=campaign.session,
            created=now(),
        )
        campaign.remember(record)
        self._told(line(record))
        if validation.classified not in (None, record.category) and number != BASELINE:
            self._told(f"     the edit looks like {validation.classified}, the plan says {record.category}")

    def _mask(self, number: int) -> None:
        campaign, settings = self.campaign, self.campaign.settings
        session = campaign.session + 1
        seed = f"{settings.seed}/{session}"
        hidden = draw(POLICIES[settings.policy], campaign.memory, seed)
        campaign.mask(
            Mask(session=session, after=number, policy=settings.policy, seed=seed, hidden=hidden, created=now())
        )

    def _external(self) -> Stop | None:
        settings, campaign = self.campaign.settings, self.campaign
        tried, best = campaign.tried, campaign.incumbent.validation.S_i
        if settings.iterations is not None and tried >= settings.iterations:
            return Stop(what="stop", reason=f"{tried} iterations", external=True)
        if settings.until_s is not None and best is not None and best >= settings.until_s:
            return Stop(what="stop", reason=f"S is {best:.3f}, {settings.until_s:g} was asked for", external=True)
        return None


def line(record: Record) -> str:
    """One line about a record, for the terminal and the log."""
    v = record.validation
    parts = [f"{record.number:3d}", record.category, v.outcome]
    if v.ratio is not None:
        parts.append(f"x{v.ratio:.3f} [{v.low:.3f}, {v.high:.3f}]")
    if record.plan is not None:
        parts.append(f"predicted x{record.plan.gain:.3f}")
    if v.S_i is not None:
        parts.append(f"S {v.S_i:.3f}")
    return "  ".join(parts) + (f"  ({v.reason})" if v.reason else "")


def words(at: Position) -> str:
    """What a campaign waits for at a step."""
    return {"done": "nothing: it has ended", "baseline": "a first kernel (submit)"}.get(
        at.step, f"the {at.step} of iteration {at.number}"
    )
