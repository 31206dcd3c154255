"""An agent at work on a campaign: each step that is not the supervisor's is a session in a jail that leaves a file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from atrex.agents.base import Agent, Task
from atrex.agents.jail import Jail
from atrex.errors import UserError
from atrex.generate.accounting import Account, Budget
from atrex.generate.prompt import OUTPUT
from atrex.generate.session import attend, take
from atrex.generate.transcript import Redactor, Transcript
from atrex.generate.workspace import NoCandidate
from atrex.optimize.lab import IncumbentFailed
from atrex.optimize.machine import Position, Supervisor, words
from atrex.optimize.model import Plan
from atrex.optimize.view import PLAN, lay_out
from atrex.optimize.view import task as task_of

TRIES = 3  # sessions for one step before the campaign gives up on the agent


@dataclass
class Spent:
    """Over the whole campaign, kept in spend.jsonl: dollars where they are known."""

    usd: float | None = 0.0
    tokens: int = 0


class Director:
    """Drives an agent through a campaign until it stops. `told` gets lines for the terminal."""

    def __init__(self, supervisor: Supervisor, agent: Agent, seconds: float, told: Callable[[str], None]):
        self._supervisor, self._campaign, self._agent = supervisor, supervisor.campaign, agent
        self._seconds, self._told = seconds, told
        self._redactor = Redactor(agent.secrets())
        self._until: float | None = None

    def run(self, most: int | None = None, until: float | None = None) -> None:
        """Until the campaign is done, its memory holds `most` iterations, the baseline among them, or `until` has come.

        `until` (time.monotonic()) ends a session and a contest, which is undecided then; what else is on its way is
        finished. Raises UserError when the agent leaves nothing usable in a few sessions.
        """
        self._until = until
        if until is not None:
            self._supervisor.bound(until)
        while (at := self._supervisor.advance()).step != "done":
            if self._over_budget() or (most is not None and self._remembered() >= most):
                return
            if self._late():
                self._told(f"the time for this run is over; the campaign waits for {words(at)}")
                return
            if at.step == "stop":
                self._supervisor.go_on()
                continue
            self._step(at)

    def _remembered(self) -> int:
        return self._campaign.tried + bool(self._campaign.memory)

    def _late(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def _step(self, at: Position) -> None:
        said = ""
        for attempt in range(TRIES):
            try:
                found = self._session(at, attempt, said)
                self._give(at, found)
                return
            except IncumbentFailed:
                raise  # no fault of what was handed in
            except (NoCandidate, UserError, ValidationError) as error:
                if self._late():
                    return
                said = str(error).splitlines()[0]
                self._told(f"{at.step}: {said}")
        if at.step == "plan":
            self._supervisor.no_direction(f"no usable plan in {TRIES} sessions: {said}")
            return
        raise UserError(f"{self._campaign.path}: no usable {at.step} in {TRIES} sessions of the agent: {said}")

    def _give(self, at: Position, found: str) -> None:
        if at.step == "plan":
            try:
                data = json.loads(found)
            except ValueError:
                raise UserError(f"{PLAN}: not JSON") from None
            if isinstance(data, dict) and set(data) == {"no_direction"}:
                self._supervisor.no_direction(str(data["no_direction"])[:300])
                return
            self._supervisor.plan(Plan.model_validate(data), more=True)
            return
        self._supervisor.submit(found)

    def _session(self, at: Position, attempt: int, said: str) -> str:
        """One session of the agent: what it left. Raises NoCandidate."""
        campaign = self._campaign
        root = campaign.path / "sessions" / f"{at.number:04d}-{at.step}-{attempt}"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        lay_out(campaign, at, root / "workspace")
        output = PLAN if at.step == "plan" else OUTPUT
        words = task_of(campaign, at) + (f"\nThe last attempt was refused: {said}\n" if said else "")
        settings, left = campaign.settings, self._seconds
        if self._until is not None:
            left = max(0.0, min(left, self._until - time.monotonic()))
        task = Task(
            operator=settings.operator, dsl=settings.dsls[0], prompt=words, deadline=time.monotonic() + left,
            output=output, device="cuda" if settings.device.startswith("cuda") else "cpu",
            seed=1000 * settings.seed + at.number, secrets=self._agent.secrets(),
        )  # fmt: skip
        account = Account(Budget(seconds=left))
        log = campaign.path / "transcripts" / f"{root.name}.jsonl"
        try:
            with Transcript(log, self._redactor) as transcript, Jail(root, self._agent.terms(task)) as jail:
                ended = attend(self._agent, task, jail, account, transcript)
                transcript.add(ended)
            self._spend(root.name, account)
            return take(root, output, ended, self._redactor)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _spend(self, name: str, account: Account) -> None:
        with (self._campaign.path / "spend.jsonl").open("a") as file:
            line = {"session": name, "tokens": account.usage.tokens, "usd": account.cost_usd if account.told else 0.0}
            file.write(json.dumps(line) + "\n")

    def _over_budget(self) -> bool:
        usd = self._campaign.settings.usd
        if usd is None:
            return False
        spent = spent_of(self._campaign.path)
        if spent.usd is not None and spent.usd < usd:
            return False
        why = f"${spent.usd:.2f} spent, of ${usd:g}" if spent.usd is not None else "what was spent is not known"
        self._supervisor.stop(why)
        self._told(f"stop: {why}")
        return True


def spent_of(path: Path) -> Spent:
    """What the agent's sessions of a campaign took; dollars are None when they are not known of one."""
    total, file = Spent(), path / "spend.jsonl"
    for text in file.read_text().splitlines() if file.exists() else []:
        line = json.loads(text)
        total.tokens += line["tokens"]
        total.usd = None if total.usd is None or line["usd"] is None else total.usd + line["usd"]
    return total
