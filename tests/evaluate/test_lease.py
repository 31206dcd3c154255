"""Judges of one device: checks side by side, timing alone, and nothing is lost with a judge that dies."""

import contextlib
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest

from atrex.evaluate.candidates import Candidate
from atrex.evaluate.lease import Lease
from atrex.evaluate.unit import Unit, UnitJudge
from tests.evaluate.conftest import HONEST
from tests.evaluate.turns import Turns

pytestmark = pytest.mark.alone

CONTEXT = multiprocessing.get_context("fork")


def hold(path, kind, started, end):
    lease = Lease(path)
    with getattr(lease, kind)():
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


def test_timing_waits_for_checks_and_checks_for_timing(judge):
    _, checking, checked = judge("shared")
    assert checking.wait(5)
    _, timing, timed = judge("exclusive")
    assert not timing.wait(0.3)
    checked.send(None)
    assert timing.wait(5)
    _, again, _ = judge("shared")
    assert not again.wait(0.3)
    timed.send(None)
    assert again.wait(5)


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


def test_the_lease_of_a_dead_judge_is_free(judge):
    process, timing, _ = judge("exclusive")
    assert timing.wait(5)
    os.kill(process.pid, signal.SIGKILL)
    _, next_one, _ = judge("exclusive")
    assert next_one.wait(5)


def test_a_judge_lets_go_of_the_device_between_cases_and_between_probes(setup, suite, tmp_path):
    path = tmp_path / "rms_norm.py"
    path.write_text(HONEST)
    problem = suite.problem("rms_norm")
    unit = Unit(Candidate(path, str(path), str(path), "rms_norm", HONEST), problem, problem.shape("46"), "cpp")
    turns = Turns()
    judge = UnitJudge(replace(setup, lease=turns), unit, readiness=True)
    assert judge.run().verdict.status == "passed"
    timed = turns.taken.index("exclusive")
    assert turns.taken.count("exclusive") == 1
    assert timed >= len(judge.tally.cases) > 5
    assert len(turns.taken) - timed > 4  # two sets of operands, the binding, a probe, the end
