"""The state machine of a campaign. Where it stands follows from the artifacts that are there, so a crash loses no step.

One iteration: evidence -> knowledge -> plan -> candidate -> validation -> memory -> stop. The supervisor makes all of
them but plan and candidate, which come from an agent or a person; each is refused while the one before it is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.optimize.dropout import POLICIES, draw
from atrex.optimize.lab import Lab
from atrex.optimize.model import BASELINE, Mask, Plan, Record, Stop
from atrex.optimize.observe import evidence, knowledge
from atrex.optimize.store import Campaign
from atrex.optimize.validate import validate

Step = Literal["baseline", "evidence", "knowledge", "plan", "candidate", "validation", "memory", "stop", "mask", "done"]
WAITS: frozenset[Step] = frozenset(("baseline", "plan", "candidate", "stop", "done"))
"""Steps that are not the supervisor's: it waits there."""
_IN_ORDER: tuple[Step, ...] = ("evidence", "knowledge", "plan", "candidate", "validation")


@dataclass(frozen=True)
class Position:
    """The next step, of which iteration."""

    step: Step
    number: int


def position(campaign: Campaign) -> Position:
    """Where a campaign stands."""
    number = campaign.numbers[-1] if campaign.numbers else BASELINE
    if campaign.has(number, "stop"):
        what = campaign.get(number, "stop").what
        if what == "stop":
            return Position("done", number)
        if what == "restart" and all(mask.after != number for mask in campaign.masks):
            return Position("mask", number)
        return Position("evidence", number + 1)
    if number == BASELINE:
        if not campaign.has(number, "candidate"):
            return Position("baseline", number)
        if not campaign.has(number, "validation"):
            return Position("validation", number)
    else:
        for step in _IN_ORDER:
            if not campaign.has(number, step):
                return Position(step, number)
    if not campaign.remembers(number):
        return Position("memory", number)
    return Position("evidence", 1) if number == BASELINE else Position("stop", number)


class Supervisor:
    """Moves a campaign on. Every method raises UserError for what the campaign does not wait for."""

    def __init__(self, campaign: Campaign, lab: Lab, told: Callable[[str], None] = lambda line: None):
        self.campaign, self.lab, self._told = campaign, lab, told

    def advance(self) -> Position:
        """Do all steps up to the next one that is not the supervisor's; where that is."""
        while (at := position(self.campaign)).step not in WAITS:
            getattr(self, f"_{at.step}")(at.number)
        return at

    # -- what comes from outside -----------------------------------------------------------------------------------

    def submit(self, source: str) -> Record | None:
        """Take a kernel: the baseline, or the candidate of a planned iteration; validate it. Its record.

        None for a baseline that did not pass: it is put aside, and another one is waited for.
        """
        at = self._expect("baseline", "candidate")
        self.campaign.put(at.number, "candidate", source)
        self.advance()
        found = [record for record in self.campaign.memory if record.number == at.number]
        return found[0] if found else None

    def plan(self, plan: Plan) -> None:
        """Take the plan of an iteration. Refused: cards that do not exist, and figures without a card."""
        at = self._expect("plan")
        from atrex.wiki.hardware import sheets
        from atrex.wiki.load import card_files

        known = {path.stem for path in card_files()} | set(sheets())
        for card in [*plan.cards, *plan.figures.values()]:
            if card not in known:
                raise UserError(f"plan: cards: {card!r} is no card of the wiki; atrex wiki search finds them")
        if not plan.cards:
            raise UserError("plan: cards: none is named; a plan stands on cards that were opened")
        self.campaign.put(at.number, "plan", plan)

    def no_direction(self, reason: str) -> Stop:
        """The agent sees no direction left: restart with part of the memory hidden, or stop when no restart is left."""
        at = self._expect("plan", "stop")
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
        self.campaign.put(max(at.number, 1), "stop", Stop(what="stop", reason=reason, external=True))

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
        found = validate(self.campaign, number, self.lab)
        if number == BASELINE and not found.accepted:
            self._told(f"baseline: {found.outcome}: {found.reason}")
            self._put_aside(found.outcome, found.model_dump_json(indent=1))
            return
        self.campaign.put(number, "validation", found)

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
        incumbent = campaign.incumbent
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
        tried, best = len(campaign.memory) - 1, campaign.incumbent.validation.S_i
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
