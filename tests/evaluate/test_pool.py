"""Several judges: the queue's order, records each once, and a judge that dies."""

import os
import signal

import pytest

from atrex.evaluate.budgets import Budgets, predicted_seconds
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.engine import Terms, UnitName
from atrex.evaluate.pool import Pool, Queue
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.unit import Unit
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone

TERMS = Terms(Seeds(b"test secret").secret, 1, Budgets(compile=20, execution=5, performance=1), 20, readiness=False)


@pytest.fixture
def units(suite, tmp_path):
    """units(operator, *shapes) -> units of an honest candidate."""

    def made(operator, *shapes, source=HONEST):
        path = tmp_path / f"{operator}.py"
        path.write_text(source)
        problem = suite.problem(operator)
        candidate = Candidate(path, str(path), str(path), operator, source)
        return [Unit(candidate, problem, problem.shape(shape), "cpp") for shape in shapes]

    return made


def test_the_longest_unit_of_a_group_is_taken_first(units):
    every = units("rms_norm", "15", "0", "46")
    queue = Queue.of(every)
    taken = [queue.take(None, []) for _ in every]
    costs = [predicted_seconds(every[i].problem.work(every[i].shape)) for i in taken]
    assert costs == sorted(costs, reverse=True) and queue.take(None, []) is None


def test_a_judge_stays_with_what_it_has_compiled_and_another_takes_the_next_group(units):
    every = units("rms_norm", "15", "46") + units("silu_and_mul", "0", "1")
    queue = Queue.of(every)
    group = lambda i: (every[i].candidate.name, every[i].problem.operator)  # noqa: E731
    first = group(queue.take(None, []))
    other = group(queue.take(None, [first]))
    assert other != first
    assert group(queue.take(first, [other])) == first
    assert group(queue.take(first, [other])) == other  # its own group is used up


def test_long_units_go_one_by_one_to_the_judge_that_takes_them_and_are_not_left_over(units):
    every = units("rms_norm", "15", "46", "0", "27") + units("silu_and_mul", "0", "1")
    queue = Queue.of(every, apart=True)
    longest = max(range(len(every)), key=lambda i: queue.cost[i])
    apart = sorted(queue.apart, key=lambda i: -queue.cost[i])
    assert apart[0] == longest and sum(queue.cost[i] for i in apart[1:]) <= sum(queue.cost) / 2
    group = ("any", "other")
    shorter = queue.take(group, [])
    assert shorter not in apart
    assert queue.take(group, [], longest=True) == longest
    left = [queue.take(group, []) for _ in range(len(every) - 2)]
    assert sorted([longest, shorter, *left]) == list(range(len(every))) and queue.take(group, [], True) is None
    assert left[len(left) - len(apart) + 1 :] == apart[1:]  # others take them last


def test_a_judge_of_long_units_goes_on_with_the_others(units):
    every = units("rms_norm", "15", "46", "47")
    queue = Queue.of(every, apart=True)
    assert sorted(queue.take(None, [], longest=True) for _ in every) == [0, 1, 2]


def test_a_unit_travels_by_name(units, suite):
    (unit,) = units("rms_norm", "46")
    again = UnitName.of(unit).unit(suite)
    assert (again.key, again.dsl, again.held_out) == (unit.key, unit.dsl, unit.held_out)


@pytest.mark.slow
def test_two_judges_record_every_unit_once(units):
    every = units("rms_norm", "15", "46", "47")
    pool = Pool(["cpu"], 2, TERMS)
    try:
        records = list(pool.judge(every))
    finally:
        pool.close()
    assert sorted(r.shape for r in records) == ["15", "46", "47"]
    assert {r.verdict.status for r in records} == {"passed"}
    assert pool.measured["judges_per_device"] == 2 and pool.measured["chip"] == "cpu"


def test_a_judge_that_dies_costs_only_its_unit_in_hand_which_is_tried_again(units):
    every = units("rms_norm", "15", "46")
    killed = []

    def kill_once(device, name):
        if name is not None and not killed:
            killed.append(name.shape)
            os.kill(pool._judges[0].process.pid, signal.SIGKILL)

    pool = Pool(["cpu"], 1, TERMS, kill_once)
    try:
        records = list(pool.judge(every))
    finally:
        pool.close()
    assert killed and sorted(r.shape for r in records) == ["15", "46"]
    assert {r.verdict.status for r in records} == {"passed"}


@pytest.mark.slow
def test_a_unit_that_kills_every_judge_is_unstable_and_the_rest_is_judged(units):
    every = units("rms_norm", "15", "46")

    def kill(device, name):
        if name is not None and name.shape == "46":
            os.kill(pool._judges[0].process.pid, signal.SIGKILL)

    pool = Pool(["cpu"], 1, TERMS, kill)
    try:
        records = {r.shape: r for r in pool.judge(every)}
    finally:
        pool.close()
    assert records["15"].verdict.status == "passed"
    assert (records["46"].verdict.status, records["46"].verdict.category) == ("error", "unstable")
    assert "two judges ended" in records["46"].verdict.reason
