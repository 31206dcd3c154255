"""An agent in charge of plans and kernels: what it leaves is taken, what it cannot leave is said to it."""

from __future__ import annotations

import json
import time

import pytest

from atrex.agents.events import Ended, Usage
from atrex.agents.jail import Terms
from atrex.errors import UserError
from atrex.optimize.director import Director, spent_of
from atrex.optimize.machine import position
from tests.optimize.conftest import PLAN
from tests.optimize.lab import kernel


class Scripted:
    """Leaves one file after the other; None leaves nothing. `told` are the prompts that it was given."""

    def __init__(self, *files, how="done", reason=None):
        self.files, self.told, self.how, self.reason = list(files), [], how, reason

    def terms(self, task):
        return Terms()

    def secrets(self):
        return ("sk-of-this-machine",)

    def work(self, task, jail):
        self.told.append(task.prompt)
        yield Usage(input=10, output=5, cost_usd=0.25)
        text = self.files.pop(0)
        if text is not None:
            (jail.workspace / task.output).write_text(text)
        yield Ended(how=self.how, reason=self.reason)


NO_DIRECTION = json.dumps({"no_direction": "all tried"})


def direct(begin, agent, **settings):
    supervisor, campaign = begin(agent="scripted", **settings)
    said = []
    Director(supervisor, agent, 60.0, said.append).run()
    return campaign, said


def test_it_plans_and_writes_until_it_sees_no_direction(begin):
    agent = Scripted(kernel(), PLAN.model_dump_json(), kernel(1.3), NO_DIRECTION)
    campaign, _ = direct(begin, agent, restarts=0)
    assert [r.validation.outcome for r in campaign.memory] == ["baseline", "promoted"]
    assert position(campaign).step == "done" and campaign.get(2, "stop").reason == "all tried"
    assert spent_of(campaign.path).usd == 1.0 and spent_of(campaign.path).tokens == 60


def test_what_was_refused_is_told_in_the_next_session(begin):
    agent = Scripted(kernel(), "not JSON", None, PLAN.model_dump_json(), kernel(1.3), NO_DIRECTION)
    campaign, said = direct(begin, agent, restarts=0)
    assert "not JSON" in agent.told[2] and "left no plan.json" in agent.told[3]
    assert len(said) == 2 and len(campaign.memory) == 2


def test_a_kernel_that_never_comes_ends_the_command_and_says_why(begin):
    agent = Scripted(None, None, None, how="error", reason="the model fell silent")
    with pytest.raises(UserError, match="left no candidate.py; the model fell silent"):
        direct(begin, agent)


def test_a_secret_in_a_kernel_is_not_taken(begin):
    agent = Scripted(kernel() + "# sk-of-this-machine\n", kernel(), NO_DIRECTION)
    campaign, said = direct(begin, agent, restarts=0)
    assert "secret" in said[0] and "sk-of" not in campaign.kernel.read_text()


def test_a_run_whose_time_is_over_begins_nothing_and_the_next_one_goes_on(begin):
    supervisor, campaign = begin(agent="scripted", iterations=1)
    agent, said = Scripted(kernel(), PLAN.model_dump_json(), kernel(1.3)), []
    Director(supervisor, agent, 60.0, said.append).run(until=time.monotonic())
    assert agent.told == [] and "the time for this run is over; the campaign waits for a first kernel" in said[0]
    Director(supervisor, agent, 60.0, said.append).run(until=time.monotonic() + 60)
    assert [r.validation.outcome for r in campaign.memory] == ["baseline", "promoted"]


def test_a_contest_that_a_run_has_no_time_for_is_undecided(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    supervisor.advance()
    supervisor.plan(PLAN)
    supervisor.bound(time.monotonic())
    assert supervisor.submit(kernel(1.3)).validation.outcome == "undecided"
    assert campaign.incumbent.number == 0


def test_a_budget_in_dollars_ends_the_campaign(begin):
    agent = Scripted(kernel(), PLAN.model_dump_json(), kernel(1.3), PLAN.model_dump_json())
    campaign, _ = direct(begin, agent, usd=0.7)
    stop = campaign.get(campaign.numbers[-1], "stop")
    assert stop.external and "$0.75 spent" in stop.reason
