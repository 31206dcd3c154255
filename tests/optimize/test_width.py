"""Several attempts from one incumbent: one is selected, one decision is made, all are remembered."""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import contextmanager, nullcontext

import pytest

from atrex.errors import UserError
from atrex.optimize import store
from atrex.optimize.director import Director
from atrex.optimize.field import run_heat
from atrex.optimize.lab import UnitFailed
from atrex.optimize.log import story
from atrex.optimize.machine import Supervisor, position
from atrex.optimize.promotion import decide
from atrex.optimize.store import Campaign
from atrex.optimize.view import lay_out
from tests.optimize.conftest import PLAN
from tests.optimize.killing import Killed, Writes
from tests.optimize.lab import SayingLab, kernel
from tests.optimize.test_bundle import Two
from tests.optimize.test_director import NO_DIRECTION, Scripted
from tests.optimize.test_promotion import Bench
from tests.scoring.synthetic import error, failed

OTHER = PLAN.model_copy(update={"category": "tiling", "change": "larger tiles of the reduction", "gain": 1.5})
THIRD = PLAN.model_copy(update={"category": "layout", "change": "pad the rows by one vector", "gain": 1.05})


def begun(begin, **settings):
    supervisor, campaign = begin(width=3, **settings)
    supervisor.submit(kernel(artifact="base"))
    supervisor.advance()
    return supervisor, campaign


def outcomes(campaign):
    return [(r.number, r.incumbent, r.validation.outcome, r.validation.decision) for r in campaign.memory]


def test_the_best_of_three_is_contested_once_and_all_are_remembered(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER, THIRD)
    records = supervisor.submit_all(kernel(1.2), kernel(1.5), kernel(wrong=1))
    assert outcomes(campaign)[1:] == [
        (1, 0, "not_selected", None), (2, 0, "promoted", 1), (3, 0, "failed", None),
    ]  # fmt: skip
    assert [record.plan.gain for record in records] == [1.2, 1.5, 1.05]
    assert campaign.kernel.read_text() == kernel(1.5) and supervisor.lab.calls.count("contest") == 1
    assert position(campaign).step == "stop" and position(campaign).number == 1
    supervisor.go_on()
    assert (supervisor.advance().step, position(campaign).number) == ("plan", 4)


def test_what_was_not_selected_has_its_prediction_beside_a_measured_ratio(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    supervisor.submit_all(kernel(1.2), kernel(1.5))
    v = campaign.memory[1].validation
    assert v.ratio == pytest.approx(1.2, rel=0.05) and v.low < v.ratio < v.high and v.rounds == 3


def test_the_contest_stands_on_other_rounds_than_the_selection(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    supervisor.submit_all(kernel(1.2), kernel(1.5))
    measured = {p.name: p.read_text() for p in (campaign.path / "measurements").iterdir()}
    heat = json.loads(measured["0002-heat.json"])["times"]["0"]
    contest = json.loads(measured["0002-contest.json"])["times_us"]["0"]
    assert len(heat) == 3 and not {tuple(pair) for pair in heat} & {tuple(pair) for pair in contest}


def test_iterations_of_four_equal_candidates_promote_within_the_error_of_the_campaign():
    promoted = lucky = 0
    for seed in range(30):
        bench, names = Bench(seed), range(4)
        for number in range(1, 6):
            heats = {name: run_heat(nullcontext(bench.measure)).comparison.overall.ratio for name in names}
            lucky += max(heats.values()) > 1  # what is selected nearly always looks faster, and is not
            if decide(bench.measure, number).promoted:
                promoted += 1
                break
    assert lucky > 120 and promoted <= 30 * 0.05 + 3 * math.sqrt(30 * 0.05 * 0.95)


@pytest.mark.parametrize("twin", [kernel(1.5), kernel(1.5, artifact=hashlib.sha256(kernel(1.5).encode()).hexdigest())])
def test_the_same_source_or_artifact_twice_in_an_iteration_is_measured_once(begin, twin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    supervisor.submit_all(kernel(1.5), twin)
    assert [outcome for _, _, outcome, _ in outcomes(campaign)[1:]] == ["promoted", "duplicate"]
    assert "heat" not in supervisor.lab.calls and "attempt 1" in campaign.memory[2].validation.reason


def test_a_source_of_before_is_not_judged_again(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN)
    before = list(supervisor.lab.calls)
    supervisor.submit(kernel(artifact="base"))
    assert campaign.memory[1].validation.outcome == "duplicate" and supervisor.lab.calls == before


def test_what_was_not_selected_may_be_handed_in_again(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    supervisor.submit_all(kernel(1.3), kernel(1.6, slow0=3.0))
    assert [outcome for _, _, outcome, _ in outcomes(campaign)[1:]] == ["promoted", "not_selected"]
    supervisor.go_on()
    supervisor.advance()
    supervisor.plan(PLAN)
    assert supervisor.submit(kernel(1.6, slow0=3.0)).validation.outcome != "duplicate"


def test_one_that_fails_in_its_heat_leaves_the_field_to_the_others(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    supervisor.submit_all(kernel(1.3), kernel(2.0, flaky=1))
    assert [outcome for _, _, outcome, _ in outcomes(campaign)[1:]] == ["promoted", "failed"]
    assert "in the heats" in campaign.memory[2].validation.reason


def test_kernels_may_come_one_by_one_and_are_validated_when_all_are_there(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    assert supervisor.submit_all(kernel(1.5)) == [] and position(campaign).number == 2
    with pytest.raises(UserError, match="attempt 1 has another kernel already"):
        supervisor.submit_all(kernel(1.4), kernel(1.2))
    assert len(supervisor.submit_all(kernel(1.5), kernel(1.2))) == 2  # all of them again is harmless


@pytest.mark.parametrize(("plans", "said"), [((PLAN, OTHER, THIRD, PLAN.model_copy(update={"gain": 9.0})), "1 to 3"),
                                             ((), "1 to 3")])  # fmt: skip
def test_no_more_plans_than_the_width(begin, plans, said):
    supervisor, _ = begun(begin)
    with pytest.raises(UserError, match=said):
        supervisor.plan(*plans)


def test_more_kernels_than_plans_are_refused(begin):
    supervisor, _ = begun(begin)
    supervisor.plan(PLAN)
    with pytest.raises(UserError, match="2 kernels; the candidate of iteration 1 is waited for, 1 in all"):
        supervisor.submit_all(kernel(1.2), kernel(1.3))


def test_an_iteration_counts_once_however_many_attempts_it_has(begin):
    supervisor, campaign = begun(begin, iterations=2)
    for step in range(2):
        supervisor.advance()
        supervisor.plan(PLAN, OTHER)
        supervisor.submit_all(kernel(0.9, step=step), kernel(0.8, step=step))
        supervisor.go_on()
    assert position(campaign).step == "done" and campaign.get(3, "stop").reason == "2 iterations"


def test_the_log_tells_attempts_of_one_iteration_together(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    supervisor.submit_all(kernel(1.2), kernel(1.5))
    told = "\n".join(story(campaign))
    assert told.count("Iteration") == 1 and "Attempt 2, 2 of 2 from that kernel" in told
    assert "not_selected, measured" in told and "3 rounds of its heat" in told


def test_stopping_between_two_attempts_ends_the_campaign(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, more=True)
    supervisor.stop("enough")
    assert position(campaign).step == "done"


# -- agents -----------------------------------------------------------------------------------------------------------


def test_an_agent_is_asked_for_a_plan_and_a_kernel_in_a_session_for_each_attempt(begin):
    agent = Scripted(
        kernel(), PLAN.model_dump_json(), OTHER.model_dump_json(), kernel(1.2), kernel(1.5), NO_DIRECTION,
    )  # fmt: skip
    supervisor, campaign = begin(agent="scripted", width=2, restarts=0)
    Director(supervisor, agent, 60.0, [].append).run()
    assert [outcome for _, _, outcome, _ in outcomes(campaign)] == ["baseline", "not_selected", "promoted"]
    sessions = sorted(path.stem for path in (campaign.path / "transcripts").iterdir())
    assert sessions == [
        "0000-baseline-0", "0001-candidate-0", "0001-plan-0", "0002-candidate-0", "0002-plan-0", "0003-plan-0",
    ]  # fmt: skip
    assert "siblings.json" not in agent.told[1] and "siblings.json" in agent.told[2]


def test_an_agent_that_sees_one_direction_goes_on_with_that(begin):
    agent = Scripted(kernel(), PLAN.model_dump_json(), NO_DIRECTION, kernel(1.2), NO_DIRECTION)
    supervisor, campaign = begin(agent="scripted", width=3, restarts=0)
    Director(supervisor, agent, 60.0, [].append).run()
    assert [outcome for _, _, outcome, _ in outcomes(campaign)] == ["baseline", "promoted"]


def test_the_same_plan_twice_is_told_to_the_next_session(begin):
    agent = Scripted(kernel(), *[PLAN.model_dump_json()] * 2, OTHER.model_dump_json(), kernel(1.2), kernel(1.3),
                     NO_DIRECTION)  # fmt: skip
    supervisor, campaign = begin(agent="scripted", width=2, restarts=0)
    Director(supervisor, agent, 60.0, [].append).run()
    assert "the same plan" in agent.told[3] and len(campaign.memory) == 3


def test_an_attempt_sees_what_the_others_plan(begin):
    supervisor, campaign = begun(begin)
    supervisor.plan(PLAN, OTHER)
    lay_out(campaign, position(campaign), campaign.path / "view")
    view = campaign.path / "view"
    assert json.loads((view / "plan.json").read_text())["change"] == PLAN.change
    assert [p["change"] for p in json.loads((view / "siblings.json").read_text()).values()] == [OTHER.change]


def test_the_width_changes_from_the_next_iteration_on_that_has_no_plan(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    supervisor.advance()
    supervisor.widen(2)
    supervisor.plan(PLAN, OTHER)
    supervisor.widen(1)
    assert len(supervisor.submit_all(kernel(1.2), kernel(1.1))) == 2
    supervisor.go_on()
    supervisor.advance()
    with pytest.raises(UserError, match="takes 1 to 1"):
        supervisor.plan(PLAN, OTHER)


# -- crashes ----------------------------------------------------------------------------------------------------------

KERNELS = {0: [kernel()], 1: [kernel(1.3), kernel(1.5), kernel(wrong=1)]}


def drive(supervisor):
    """An iteration of several attempts, deciding by where it stands."""
    while (at := supervisor.advance()).step != "done":
        first = supervisor.campaign.first_of(at.number)
        if at.step == "plan" and first == 4:
            supervisor.no_direction("all tried")
        elif at.step == "plan":
            supervisor.plan(*[PLAN, OTHER, THIRD][: len(KERNELS[first])])
        elif at.step == "stop":
            supervisor.go_on()
        else:
            supervisor.submit_all(*KERNELS[first])


def told(campaign):
    return outcomes(campaign), [record.session for record in campaign.memory]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_every_write_it_comes_to_the_same_and_measures_nothing_twice(begin, monkeypatch, before):
    write, counting = store.write, Writes(store.write, before)

    def fresh(name):
        monkeypatch.setattr(store, "write", write)
        _, campaign = begin(name, width=3, restarts=0)
        monkeypatch.setattr(store, "write", counting)
        return campaign

    undisturbed, lab = fresh("undisturbed"), SayingLab()
    drive(Supervisor(undisturbed, lab))
    writes, calls = counting.count, len(lab.calls)
    assert told(undisturbed)[0][1:] == [
        (1, 0, "not_selected", None), (2, 0, "promoted", 1), (3, 0, "failed", None),
    ]  # fmt: skip
    for kill_at in range(1, writes + 1):
        campaign, lab = fresh(f"killed-{kill_at}"), SayingLab()
        counting.count, counting.kill_at = 0, kill_at
        with pytest.raises(Killed):
            drive(Supervisor(campaign, lab))
        drive(Supervisor(Campaign(campaign.path), lab))
        assert told(campaign) == told(undisturbed), kill_at
        # Only the measurement that was not written down yet is made again, the judge's of a baseline too.
        assert len(lab.calls) <= calls + (1 if before else 2), kill_at


# -- bundles ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(begin, tmp_path):
    from atrex.optimize.served import ServedLab

    supervisor, campaign = begin(width=3, elsewhere=True)
    supervisor.lab = ServedLab(campaign)
    machines = Two(supervisor, campaign, tmp_path)
    machines.submit(kernel())
    machines.trip()
    return machines


def hand_in(two, *sources):
    from atrex.optimize.lab import Pending

    two.supervisor.plan(*[PLAN, OTHER, THIRD][: len(sources)])
    with pytest.raises(Pending):
        two.supervisor.submit_all(*sources)


def test_one_bundle_carries_all_candidates_and_one_answer_settles_them(two):
    from atrex.optimize.ask import ask

    hand_in(two, kernel(1.2), kernel(1.5), kernel(wrong=1))
    asked, files = ask(two.campaign, position(two.campaign))
    assert asked.attempts == [1, 2, 3] and files["candidate-0002.py"].decode().rstrip() == kernel(1.5).rstrip()
    two.lab.calls.clear()
    two.trip()
    assert two.lab.calls == ["judge"] * 3 + ["heat"] * 2 + ["contest"]
    assert outcomes(two.campaign)[1:] == [
        (1, 0, "not_selected", None), (2, 0, "promoted", 1), (3, 0, "failed", None),
    ]  # fmt: skip
    two.supervisor.go_on()
    assert two.supervisor.advance().step == "plan"  # the look at the new kernel came along


def test_plans_and_kernels_are_handed_in_as_several_files(two, tmp_path):
    from typer.testing import CliRunner

    from atrex.cli.main import app

    def run(*words):
        return CliRunner().invoke(app, ["optimize", words[0], str(two.campaign.path), *map(str, words[1:])])

    files = []
    for i, content in enumerate((PLAN.model_dump_json(), OTHER.model_dump_json(), kernel(1.2), kernel(1.5))):
        files.append(tmp_path / f"{i}.txt")
        files[-1].write_text(content)
    assert "up to 3 plans" in run("next").output
    assert "2 plans; hand in the kernels" in run("plan", *files[:2]).output
    assert "2 kernels, one for each plan" in run("next").output
    assert "1 kernel kept; that of attempt 2 is waited for" in run("submit", files[2]).output
    done = run("submit", files[3])
    assert done.exit_code == 0 and "atrex optimize bundle" in done.stderr
    two.trip()
    assert "1 iterations with 2 attempts, 1 promoted" in run("status").output


def test_a_repeated_source_is_not_judged_on_the_device(two):
    hand_in(two, kernel(1.2), kernel(), kernel(1.2))
    two.lab.calls.clear()
    two.trip()
    assert two.lab.calls == ["judge", "contest"]
    assert [outcome for _, _, outcome, _ in outcomes(two.campaign)[1:]] == ["promoted", "duplicate", "duplicate"]


def test_killed_at_every_write_of_taking_in_it_takes_in_again(two, monkeypatch, tmp_path):
    import shutil

    from atrex.optimize.served import ingest

    hand_in(two, kernel(1.2), kernel(1.5), kernel(wrong=1))
    result = two.serve(two.bundle())
    counting = Writes(store.write)
    kept = tmp_path / "kept"
    shutil.copytree(two.campaign.path, kept)
    monkeypatch.setattr(store, "write", counting)
    ingest(Campaign(two.campaign.path), result)
    writes, wanted = counting.count, outcomes(two.campaign)
    assert writes > 8
    for kill_at in range(1, writes + 1):
        path = tmp_path / f"again-{kill_at}"
        shutil.copytree(kept, path)
        counting.count, counting.kill_at = 0, kill_at
        with pytest.raises(Killed):
            ingest(Campaign(path), result)
        ingest(Campaign(path), result)
        assert outcomes(Campaign(path)) == wanted, kill_at


def ends_heats(lab, record, of_candidate, speed="1.5"):
    """Every heat of a candidate of this speed ends with this record."""
    heat = lab.heat

    @contextmanager
    def ending(incumbent, candidate):
        def measure(shapes=None):
            raise UnitFailed(record, of_candidate)

        with heat(incumbent, candidate) as whole:
            yield measure if f"speed={speed}" in candidate.read_text() else whole

    lab.heat = ending


@pytest.mark.parametrize("of_candidate", [True, False])
def test_a_heat_that_noise_has_ended_leaves_its_candidate_undecided_and_the_others_in_the_field(two, of_candidate):
    hand_in(two, kernel(1.2), kernel(1.5))
    ends_heats(two.lab, error("unstable", shape="1"), of_candidate)
    two.trip()
    assert [outcome for _, _, outcome, _ in outcomes(two.campaign)[1:]] == ["promoted", "undecided"]


def test_an_answer_in_which_the_incumbent_failed_in_a_heat_is_refused(two):
    from atrex.optimize.served import ingest

    hand_in(two, kernel(1.2), kernel(1.5))
    ends_heats(two.lab, failed("runtime", "integrity", shape="1"), of_candidate=False)
    result = two.serve(two.bundle())
    with pytest.raises(UserError, match="the incumbent failed on 1"):
        ingest(two.campaign, result)
    assert position(two.campaign).step == "validation"
