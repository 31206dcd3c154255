"""A campaign killed anywhere goes on where it stood: no state lost, no step done twice."""

from __future__ import annotations

import json

import pytest

from atrex.optimize import store
from atrex.optimize.machine import Supervisor, position
from atrex.optimize.store import Campaign
from tests.optimize.conftest import PLAN
from tests.optimize.killing import Killed, Writes
from tests.optimize.lab import SayingLab, kernel

KERNELS = [kernel(), kernel(1.3), kernel(0.9, note=1), kernel(1.8)]


def drive(supervisor):
    """The whole campaign, deciding by where it stands, as whoever restarts it would."""
    while (at := supervisor.advance()).step != "done":
        if at.step == "plan" and at.number == 3 and supervisor.campaign.session == 0:
            supervisor.no_direction("look elsewhere")
        elif at.step == "plan":
            supervisor.plan(PLAN)
        elif at.step == "stop":
            supervisor.go_on()
        else:
            tried = len(supervisor.campaign.memory)
            supervisor.submit(KERNELS[tried])


def told(campaign):
    """What a campaign came to, without times of day and of measurement."""
    return [
        (r.number, r.incumbent, r.category, r.validation.outcome, r.validation.decision, r.session)
        for r in campaign.memory
    ] + [(m.session, m.after, m.hidden) for m in campaign.masks]


@pytest.fixture
def undisturbed(begin):
    supervisor, campaign = begin("undisturbed", iterations=3)
    drive(supervisor)
    return told(campaign)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_every_write_it_comes_to_the_same(begin, undisturbed, monkeypatch, before):
    write, counting = store.write, Writes(store.write, before)
    _, campaign = begin("counted", iterations=3)
    monkeypatch.setattr(store, "write", counting)
    monkeypatch.setattr("atrex.optimize.store.write", counting)
    drive(Supervisor(campaign, SayingLab()))
    writes = counting.count
    assert writes > 20
    for kill_at in range(1, writes + 1):
        counting.kill_at = kill_at
        monkeypatch.setattr(store, "write", write)
        _, campaign = begin(f"killed-{kill_at}", iterations=3)
        monkeypatch.setattr(store, "write", counting)
        counting.count = 0
        with pytest.raises(Killed):
            drive(Supervisor(campaign, SayingLab()))
        drive(Supervisor(Campaign(campaign.path), SayingLab()))
        assert told(campaign) == undisturbed, kill_at
        assert position(campaign).step == "done"


def test_killed_in_a_measurement_it_measures_again_and_spends_one_decision(begin):
    class Dying(SayingLab):
        def judge(self, source):
            if len(self.calls) == 2:
                self.calls.append("died")
                raise Killed
            return super().judge(source)

    supervisor, campaign = begin(lab=Dying())
    supervisor.submit(kernel())
    supervisor.advance()
    supervisor.plan(PLAN)
    supervisor.lab.calls = ["judge", "judge"]
    with pytest.raises(Killed):
        supervisor.submit(kernel(1.3))
    supervisor = Supervisor(Campaign(campaign.path), SayingLab())
    supervisor.advance()
    assert [r.validation.decision for r in campaign.memory] == [None, 1]


def test_a_measurement_forged_in_an_agents_view_has_no_effect(begin):
    from atrex.optimize.view import lay_out

    supervisor, campaign = begin()
    supervisor.submit(kernel())
    at = supervisor.advance()
    lay_out(campaign, at, campaign.path / "view")
    memory = campaign.path / "view" / "memory.json"
    forged = json.loads(memory.read_text())
    forged[0]["S"] = 0.99
    memory.write_text(json.dumps(forged))
    (campaign.path / "view" / "measurements").mkdir()
    supervisor.plan(PLAN)
    record = supervisor.submit(kernel(0.9))
    assert record.validation.outcome == "no_gain" and campaign.memory[0].validation.S_i == pytest.approx(0.1)
