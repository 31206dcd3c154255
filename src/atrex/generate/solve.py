"""One problem, one agent: from an empty workspace to a record."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from atrex.agents.base import Agent, Choice, Policy, Task
from atrex.agents.events import Ended
from atrex.agents.jail import Jail
from atrex.generate.accounting import Account, Budget
from atrex.generate.prompt import OUTPUT, prompt
from atrex.generate.records import Generated
from atrex.generate.session import attend, take
from atrex.generate.target import Target
from atrex.generate.transcript import Redactor, Transcript
from atrex.generate.workspace import NoCandidate, lay_out
from atrex.problems.model import Problem

BACK_OFF = (5.0, 20.0, 60.0, 180.0)  # seconds before a provider that failed is asked again


class Stopped(Exception):
    """The run was interrupted; the problem at hand has no record, and a resumed run does it again."""


@dataclass(frozen=True)
class Work:
    """What every problem of a run is worked on with."""

    out: Path
    agent: Agent
    choice: Choice
    dsl: str
    target: Target
    policy: Policy
    budget: Budget
    gpu: bool = False


class Solver:
    """Works on problems, from several threads; `stop` ends what is under way."""

    def __init__(self, work: Work, back_off: tuple[float, ...] = BACK_OFF):
        self.work, self._back_off = work, back_off
        self.redactor = Redactor(work.agent.secrets())
        self._jails: set[Jail] = set()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End all agents. `solve` raises Stopped where one was at work."""
        self._stopping.set()
        for jail in list(self._jails):
            jail.kill()

    def solve(self, problem: Problem, sample: int) -> Generated:
        """Give the problem to the agent and keep what it leaves. Raises Stopped, UserError where it cannot be confined.

        Whatever the agent does ends in a record: a problem without a candidate has a file that says why, and fails.
        """
        work, name = self.work, f"{problem.operator}-{sample}"
        asked = prompt(problem, work.dsl, work.target)
        account = Account(work.budget, agent_keeps_usd=work.agent.keeps_usd)
        began = time.monotonic()
        root = work.out / "workspaces" / name
        held = None
        with Transcript(work.out / "transcripts" / f"{name}.jsonl", self.redactor) as transcript:
            attempts = 0
            for pause in (*self._back_off, None):
                attempts += 1
                lay_out(root, problem, asked.text, keep=attempts > 1)
                deadline = began + work.budget.seconds
                task = self._task(problem, sample, asked.text, deadline, account)
                terms = replace(work.agent.terms(task), device="cuda" if work.gpu else "cpu")
                with Jail(root, terms) as jail, self._known(jail):
                    ended = attend(work.agent, task, jail, account, transcript, self._stopping.is_set)
                    if ended.how == "provider" and (spent := account.spent()):
                        ended = Ended(how="budget", reason=f"{spent}; {ended.reason}")
                    held = jail.held or held
                transcript.add(ended)
                if self._stopping.is_set():
                    shutil.rmtree(root, ignore_errors=True)
                    raise Stopped
                if ended.how != "provider" or not ended.again or pause is None or time.monotonic() + pause > deadline:
                    break
                self._stopping.wait(pause)
        source = why = None
        try:
            source = take(root, OUTPUT, ended, self.redactor)
        except NoCandidate as error:
            why = str(error)
        self._keep(problem.operator, sample, source, why)
        shutil.rmtree(root, ignore_errors=True)
        return Generated(
            operator=problem.operator,
            sample=sample,
            agent=work.choice.name,
            model=work.choice.model,
            models=account.models,
            dsl=work.dsl,
            prompt_sha256=asked.sha256,
            policy=work.policy,
            tools=list(account.tools) if account.tools is not None else None,
            confinement=held,
            usage=account.usage if account.told else None,
            service_tokens=account.service_tokens if account.answers else None,
            cost_usd=account.cost_usd,
            seconds=round(time.monotonic() - began, 3),
            turns=account.turns,
            tool_calls=account.tool_calls,
            attempts=attempts,
            refused_hosts=sorted(account.refused),
            ended=ended.how,
            reason=self.redactor.clean(why or ended.reason or "") or None,
            candidate_sha256=hashlib.sha256(source.encode()).hexdigest() if source is not None else None,
        )

    def _task(self, problem: Problem, sample: int, text: str, deadline: float, account: Account) -> Task:
        work, usd = self.work, self.work.budget.usd
        return Task(
            operator=problem.operator,
            dsl=work.dsl,
            prompt=text,
            deadline=deadline,
            output=OUTPUT,
            policy=work.policy,
            device=work.target.device,
            arch=work.target.arch,
            seed=sample,
            budget_usd=None if usd is None else max(usd - (account.cost_usd or 0.0), 0.0),
            secrets=work.agent.secrets(),
        )

    @contextlib.contextmanager
    def _known(self, jail: Jail):
        self._jails.add(jail)
        if self._stopping.is_set():
            jail.kill()
        try:
            yield
        finally:
            self._jails.discard(jail)

    def _keep(self, operator: str, sample: int, source: str | None, why: str | None) -> None:
        folder = self.work.out / f"sample-{sample}"
        folder.mkdir(parents=True, exist_ok=True)
        text = source if source is not None else f"# No candidate: {self.redactor.clean(why or '')}\n"
        new = folder / f"{operator}.py.new"
        new.write_text(text, encoding="utf-8")
        new.replace(folder / f"{operator}.py")
