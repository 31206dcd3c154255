"""What a campaign is asked to do step by step, as functions: the command line and the tools of `atrex mcp` share them.

Each holds the campaign while it works, and raises UserError, or Pending where a device on another machine has to
measure first. `told` gets lines about what happens on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.optimize.director import spent_of
from atrex.optimize.log import story
from atrex.optimize.machine import Position, Supervisor, position
from atrex.optimize.model import Plan, Record, Stop
from atrex.optimize.served import lab_of
from atrex.optimize.store import Campaign

Told = Callable[[str], None]
VIEW = "view"


def quiet(line: str) -> None:
    """Nobody listens."""


@contextmanager
def supervised(path: Path, told: Told = quiet) -> Iterator[Supervisor]:
    """The supervisor of a campaign, which is held against others meanwhile."""
    campaign = Campaign(path)
    with campaign.held():
        yield Supervisor(campaign, lab_of(campaign), told)


@dataclass(frozen=True)
class Next:
    """What is wanted next: the folder to make it from and the task in words, both None at the end.

    `most` is how many plans or kernels may be handed in; `stop` is what the stop check just said.
    """

    at: Position
    view: Path | None
    task: str | None
    most: int
    stop: Stop | None


def next_step(path: Path, told: Told = quiet) -> Next:
    """Do what is the supervisor's, then lay out in CAMPAIGN/view what the next plans or kernels are to be made from."""
    from atrex.optimize.view import lay_out, task

    with supervised(path, told) as supervisor:
        at, stop, campaign = supervisor.advance(), None, supervisor.campaign
        if at.step == "stop":
            stop = supervisor.go_on()
            at = supervisor.advance()
        if at.step == "done":
            return Next(at, None, None, 0, stop)
        lay_out(campaign, at, path / VIEW)
        return Next(at, path / VIEW, task(campaign, at), _most(campaign, at), stop)


def _most(campaign: Campaign, at: Position) -> int:
    first = campaign.first_of(at.number)
    attempts = campaign.attempts(first)
    if at.step == "plan":
        return campaign.width(first) - len(attempts)
    return sum(not campaign.has(number, "candidate") for number in attempts) or 1


def plan(path: Path, plans: Sequence[Plan], none: str | None = None, told: Told = quiet) -> Stop | None:
    """Hand in the plans of an iteration, or say why there is none: then what came of that."""
    if bool(plans) == (none is not None):
        raise UserError("plan: expected plans, or why there is none")
    with supervised(path, told) as supervisor:
        supervisor.advance()
        if none is not None:
            return supervisor.no_direction(none)
        supervisor.plan(*plans)
        return None


def submit(path: Path, sources: Sequence[str], told: Told = quiet) -> tuple[list[Record], Position]:
    """Hand in kernels: the baseline, or candidates of the planned attempts. They are judged, and the best contested.

    The iteration's records, none while candidates are missing or when the baseline did not pass; and where that led.
    """
    with supervised(path, told) as supervisor:
        return supervisor.submit_all(*sources), position(supervisor.campaign)


def stop(path: Path, reason: str) -> None:
    """End a campaign."""
    with supervised(path) as supervisor:
        supervisor.stop(reason)


def status(path: Path) -> dict[str, Any]:
    """Where a campaign stands, in figures. An iteration may have several attempts."""
    campaign = Campaign(path)
    at, memory, best = position(campaign), campaign.memory, campaign.incumbent
    spent = spent_of(campaign.path)
    return {
        "operator": campaign.settings.operator, "dsl": campaign.settings.dsl, "chip": campaign.settings.chip,
        "step": at.step, "iteration": at.number, "iterations": campaign.tried, "attempts": max(len(memory) - 1, 0),
        "accepted": [record.number for record in memory if record.accepted],
        "S": best.validation.S_i if best else None, "S_baseline": memory[0].validation.S_i if memory else None,
        "session": campaign.session, "hidden": len(memory) - len(campaign.visible), "tokens": spent.tokens,
        "usd": spent.usd,
    }  # fmt: skip


def log(path: Path) -> list[str]:
    """A campaign as a story, in lines."""
    return list(story(Campaign(path)))
