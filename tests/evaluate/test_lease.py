"""Judges of one device: checks side by side, timing alone, and nothing is lost with a judge that dies."""

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from atrex.evaluate import performance
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.lease import Lease
from atrex.evaluate.unit import Unit, UnitJudge
from tests.evaluate.conftest import HONEST
from tests.evaluate.turns import Turns

pytestmark = pytest.mark.alone

CONTEXT = multiprocessing.get_context("fork")


def hold(path, kind, started, end):
    lease = Lease(path)
    taken = {"room": lease.room, "room alone": lambda: lease.room(alone=True)}.get(kind) or getattr(lease, kind)
    with taken():
        started.set()
        end.poll(10)


@pytest.fixture
def judge(tmp_path):
    """judge(kind) -> (process, started, end): a process that takes the lease, and holds it until `end` sends."""
    running = []

    def start(kind):
        started = CONTEXT.Event()
        theirs, end = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=hold, args=(tmp_path / "lease", kind, started, theirs))
        process.start()
        running.append((process, end))
        return process, started, end

    yield start
    for process, end in running:
        with contextlib.suppress(OSError):
            end.send(None)
        process.join(5)


def test_checks_go_side_by_side(judge):
    _, first, _ = judge("shared")
    _, second, _ = judge("shared")
    assert first.wait(5) and second.wait(5)


@pytest.mark.parametrize(("many", "one"), [("shared", "exclusive"), ("room", "room alone")])
def test_one_waits_for_many_and_many_for_one(judge, many, one):
    _, held, let_go = judge(many)
    assert held.wait(5)
    _, alone, done = judge(one)
    assert not alone.wait(0.3)
    let_go.send(None)
    assert alone.wait(5)
    _, again, _ = judge(many)
    assert not again.wait(0.3)
    done.send(None)
    assert again.wait(5)


@pytest.mark.parametrize("room", ["room", "room alone"])
def test_room_and_the_device_are_taken_apart(judge, room):
    _, first, _ = judge(room)
    _, second, _ = judge("exclusive")
    assert first.wait(5) and second.wait(5)


def test_timing_is_not_starved_by_checks_that_come_later(judge):
    _, checking, checked = judge("shared")
    assert checking.wait(5)
    _, timing, timed = judge("exclusive")
    time.sleep(0.3)
    _, later, _ = judge("shared")
    assert not later.wait(0.3)
    checked.send(None)
    assert timing.wait(5) and not later.is_set()
    timed.send(None)
    assert later.wait(5)


def test_judges_that_wait_to_time_go_one_after_the_other(judge):
    """Otherwise each of them would wait anew for a quiet device."""
    _, first, done = judge("exclusive")
    assert first.wait(5)
    _, check, _ = judge("shared")
    time.sleep(0.3)
    _, second, over = judge("exclusive")
    time.sleep(0.3)
    done.send(None)
    assert second.wait(5) and not check.wait(0.3)
    over.send(None)
    assert check.wait(5)


def test_the_lease_of_a_dead_judge_is_free(judge):
    process, timing, _ = judge("exclusive")
    assert timing.wait(5)
    os.kill(process.pid, signal.SIGKILL)
    _, next_one, _ = judge("exclusive")
    assert next_one.wait(5)


@pytest.fixture
def crowded(setup, suite, tmp_path):
    """crowded(source, readiness=False) -> the judge of a unit where others use the device, and its turns."""

    def made(source, readiness=False):
        path = tmp_path / "rms_norm.py"
        path.write_text(source)
        problem = suite.problem("rms_norm")
        unit = Unit(Candidate(path, str(path), str(path), "rms_norm", source), problem, problem.shape("46"), "cpp")
        turns = Turns()
        return UnitJudge(replace(setup, lease=turns), unit, readiness=readiness), turns

    return made


def test_a_judge_lets_go_of_the_device_between_cases_and_between_probes(crowded):
    judge, turns = crowded(HONEST, readiness=True)
    assert judge.run().verdict.status == "passed"
    timed = turns.taken.index("exclusive")
    assert turns.taken.count("exclusive") == 1
    assert timed >= len(judge.tally.cases) > 5
    assert len(turns.taken) - timed > 4  # two sets of operands, the binding, a probe, the end


@pytest.mark.parametrize(("room", "held"), [(performance.KEPT_BYTES, "shared"), (0, "exclusive")])
def test_no_reference_is_computed_on_a_device_that_is_held_alone_while_there_is_room(crowded, monkeypatch, room, held):
    judge, turns = crowded(HONEST)
    real, asked = performance.expected, []

    def seen(*arguments):
        asked.append(turns.held)
        return real(*arguments)

    monkeypatch.setattr(performance, "expected", seen)
    monkeypatch.setattr(performance, "KEPT_BYTES", room)
    assert judge.run().verdict.status == "passed"
    assert len(asked) > performance.SPOT_CHECKS and set(asked) == {held}


def test_what_is_verified_afterwards_leaves_the_device_to_others_in_between(crowded, monkeypatch):
    judge, turns = crowded(HONEST)
    monkeypatch.setattr("atrex.evaluate.unit.TURN_SECONDS", 1e-9)
    assert judge.run().verdict.status == "passed"
    after = len(turns.taken) - 1 - turns.taken.index("exclusive")
    assert after > performance.SPOT_CHECKS + 2


def test_a_candidate_that_found_the_memory_full_is_judged_again_alone(crowded):
    judge, turns = crowded(HONEST.replace("h = x.float()", "raise torch.OutOfMemoryError('CUDA out of memory')"))
    assert judge.run().verdict.category == "exception" and turns.rooms == [False, True]


def test_a_judge_that_found_the_memory_full_judges_again_alone(crowded, monkeypatch):
    from atrex.evaluate import correctness

    real, left = correctness.oracle, [1]

    def full_once(*arguments):
        if left and left.pop():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments)

    monkeypatch.setattr(correctness, "oracle", full_once)
    judge, turns = crowded(HONEST)
    assert judge.run().verdict.status == "passed" and turns.rooms == [False, True]


def test_any_other_end_is_judged_once(crowded):
    judge, turns = crowded(HONEST.replace("h = x.float()", "raise ValueError('no')"))
    judge.run()
    assert turns.rooms == [False]
