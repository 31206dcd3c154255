"""The loop by hand: what is asked for, what is refused, what is promoted, remembered and forgotten."""

from __future__ import annotations

import subprocess

import pytest

from atrex.errors import UserError
from atrex.optimize.log import story
from atrex.optimize.machine import position
from atrex.optimize.model import Plan
from atrex.optimize.store import Campaign
from tests.optimize.conftest import PLAN
from tests.optimize.lab import SayingLab, kernel


def step(supervisor, source, plan=PLAN):
    """One whole iteration."""
    supervisor.advance()
    supervisor.plan(plan)
    record = supervisor.submit(source)
    supervisor.go_on()
    return record


def tags(campaign):
    return subprocess.run(
        ["git", "tag"], cwd=campaign.path / "kernel", capture_output=True, text=True
    ).stdout.split()  # fmt: skip


def test_a_campaign_begins_with_a_kernel(begin):
    supervisor, campaign = begin()
    assert supervisor.advance().step == "baseline"
    record = supervisor.submit(kernel())
    assert record.validation.outcome == "baseline" and campaign.kernel.read_text() == kernel()
    assert tags(campaign) == ["baseline"] and supervisor.advance().step == "plan"


@pytest.mark.parametrize(("first", "aside"), [(kernel(wrong=1), "attempt-0000"), (kernel(share=0.4), "vanilla")])
def test_a_first_kernel_that_is_no_kernel_is_put_aside(begin, first, aside):
    supervisor, campaign = begin()
    assert supervisor.submit(first) is None and supervisor.advance().step == "baseline"
    assert (campaign.path / "aside" / f"{aside}.py").read_text() == first and campaign.memory == []
    assert supervisor.submit(kernel()).accepted


def test_a_faster_kernel_becomes_the_incumbent_and_the_record_holds_prediction_and_measurement(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    record = step(supervisor, kernel(1.3))
    v = record.validation
    assert (v.outcome, v.decision) == ("promoted", 1) and v.low < 1.3 < v.high
    assert record.plan.gain == 1.2 and record.incumbent == 0
    assert campaign.incumbent.number == 1 and tags(campaign) == ["baseline", "iteration-0001"]


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        (kernel(0.9), "no_gain"),
        (kernel(1.0, note="same"), "no_gain"),
        (kernel(wrong=1), "failed"),
        (kernel(2.0, share=0.5), "fallback"),
        (kernel(3.0, slow0=4.0), "slower_shape"),
        (kernel(1.5, flaky=1), "failed"),
    ],
)
def test_what_is_not_shown_to_be_faster_leaves_the_incumbent(begin, source, outcome):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    assert step(supervisor, source).validation.outcome == outcome
    assert campaign.incumbent.number == 0 and campaign.kernel.read_text() == kernel()


def test_what_noise_leaves_undecided_is_remembered_and_may_be_handed_in_again(begin):
    lab = SayingLab()
    supervisor, campaign = begin(lab=lab)
    supervisor.submit(kernel())
    lab.disturbed = 5.0
    found = step(supervisor, kernel(1.5)).validation
    assert found.outcome == "undecided" and "from round to round" in found.reason and found.decision == 1
    assert campaign.kernel.read_text() == kernel() and "undecided" in "\n".join(story(campaign))
    lab.disturbed = 0.0
    again = step(supervisor, kernel(1.5)).validation
    assert (again.outcome, again.decision) == ("promoted", 2) and again.error < found.error


def test_a_contest_beyond_its_rounds_is_undecided_and_no_error(begin):
    supervisor, _ = begin(contest_rounds=5)
    supervisor.submit(kernel())
    found = step(supervisor, kernel(1.5)).validation
    assert found.outcome == "undecided" and "the limit is 5" in found.reason
    assert found.decision is None and found.rounds == 0


def test_an_incumbent_that_fails_in_a_contest_loses_nothing_and_the_same_command_goes_on(begin):
    lab = SayingLab()
    supervisor, campaign = begin(lab=lab)
    supervisor.submit(kernel())
    supervisor.advance()
    supervisor.plan(PLAN)
    lab.incumbent_fails = 1
    with pytest.raises(UserError, match="incumbent itself failed on shape 1 .*nothing is lost"):
        supervisor.submit(kernel(1.3))
    assert len(campaign.memory) == 1 and campaign.candidate(1).read_text() == kernel(1.3)
    assert supervisor.submit(kernel(1.3)).validation.outcome == "promoted"
    assert lab.calls.count("judge") == 2


def test_what_compiles_to_the_same_is_not_measured_again(begin):
    lab = SayingLab()
    supervisor, _ = begin(lab=lab)
    supervisor.submit(kernel(artifact="abc"))
    record = step(supervisor, kernel(1.5, artifact="abc"))
    assert record.validation.outcome == "duplicate" and "attempt 0" in record.validation.reason
    assert "contest" not in lab.calls and record.validation.decision is None


def test_one_artifact_launched_otherwise_is_another_kernel(begin):
    supervisor, _ = begin()
    supervisor.submit(kernel(artifact="abc"))
    record = step(supervisor, kernel(1.5, artifact="abc") + "PROGRAMS = 132\n")
    assert record.validation.outcome == "promoted"


def test_decisions_share_one_error_rate(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    for i in range(4):
        step(supervisor, kernel(0.9, note=i))
    shares = [record.validation.error for record in campaign.memory[1:]]
    assert shares == sorted(shares, reverse=True) and sum(shares) < 0.05


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cards": ["no-such-card"]}, "'no-such-card' is no card"),
        ({"cards": []}, "none is named"),
        ({"figures": {"4.8 TB/s": "no-such-sheet"}}, "'no-such-sheet' is no card"),
    ],
)
def test_a_plan_stands_on_cards_that_exist(begin, change, said):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    supervisor.advance()
    with pytest.raises(UserError, match=said):
        supervisor.plan(PLAN.model_copy(update=change))
    assert position(campaign).step == "plan"


def test_nothing_is_taken_out_of_turn(begin):
    supervisor, _ = begin()
    with pytest.raises(UserError, match="waits for a first kernel"):
        supervisor.plan(PLAN)
    supervisor.submit(kernel())
    supervisor.advance()
    with pytest.raises(UserError, match="waits for the plan of iteration 1"):
        supervisor.submit(kernel(2.0))


def test_no_direction_left_hides_part_of_the_memory_and_then_ends(begin):
    supervisor, campaign = begin(restarts=1, policy="uniform")
    supervisor.submit(kernel())
    step(supervisor, kernel(1.3))
    for i in range(4):
        step(supervisor, kernel(0.9, note=i))
    supervisor.advance()
    assert supervisor.no_direction("all tried").what == "restart"
    hidden = {r.number for r in campaign.memory} - {r.number for r in campaign.visible}
    assert len(hidden) == 2 and not hidden & {0, 1} and len(campaign.memory) == 6
    assert supervisor.advance().step == "plan" and campaign.session == 1
    assert supervisor.no_direction("still").what == "stop" and supervisor.advance().step == "done"


@pytest.mark.parametrize(
    ("settings", "said"), [({"iterations": 1}, "1 iterations"), ({"until_s": 0.12}, "0.12 was asked for")]
)
def test_external_bounds_end_a_campaign_and_are_told_as_such(begin, settings, said):
    supervisor, campaign = begin(**settings)
    supervisor.submit(kernel())
    step(supervisor, kernel(1.3))
    stop = campaign.get(1, "stop")
    assert stop.external and said in stop.reason and position(campaign).step == "done"


def test_a_campaign_is_stopped_by_hand_at_any_step(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    supervisor.advance()
    supervisor.stop("enough")
    assert position(campaign).step == "done" and campaign.get(1, "stop").reason == "enough"


def test_the_log_tells_what_was_seen_planned_and_found(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    step(supervisor, kernel(1.3))
    told = "\n".join(story(campaign))
    for words in ("Baseline:", "Iteration 1", "wider loads of both operands", "predicted x1.20", "promoted, measured"):
        assert words in told


def test_one_supervisor_at_a_time(begin):
    _, campaign = begin()
    with campaign.held(), pytest.raises(UserError, match="another command"), Campaign(campaign.path).held():
        pass


def test_a_damaged_file_is_named(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    supervisor.plan(PLAN)
    (campaign.path / "memory" / "0000.json").write_text("{}")
    with pytest.raises(UserError, match=r"memory/0000.json: number"):
        supervisor.submit(kernel(1.3))


def test_a_folder_that_is_no_campaign_says_so(tmp_path):
    with pytest.raises(UserError, match="no campaign.json"):
        Campaign(tmp_path)


@pytest.mark.parametrize("change", [{"category": "magic"}, {"gain": 0}, {"change": "x"}, {"extra": 1}])
def test_a_plan_is_checked_field_by_field(change):
    from pydantic import ValidationError

    with pytest.raises(ValidationError):
        Plan.model_validate(PLAN.model_dump() | change)
