"""Workers that are started ahead: beside what the judge does, in turns of their own on the device."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atrex.evaluate.ahead import DEPTH
from atrex.evaluate.lease import Alone, Lease
from atrex.evaluate.performance import Timing
from atrex.evaluate.spawn import WorkerDied
from tests.evaluate.conftest import HONEST


@pytest.fixture
def ahead(setup):
    """The session's setup with workers forked ahead, as a device has them; none is left over."""
    setup.ahead.fill()
    yield setup
    setup.ahead.discard()
    setup.lease = Alone()


def coming(setup):
    return [each.worker for each in setup.ahead._queue]


def up(setup):
    return [each.started is not None and each.started.done() for each in setup.ahead._queue]


def until(holds):
    deadline = time.monotonic() + 5
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def no_turn():
    raise AssertionError("a worker that was started ahead needs no turn on the device")


def test_workers_started_ahead_are_taken_in_turn(ahead):
    forked = coming(ahead)
    assert len(forked) == DEPTH
    ahead.ahead.start(ahead.lease)
    ahead.ahead.start(ahead.lease)  # asked twice, started once
    for expected in forked:
        worker = ahead.spawn(no_turn)
        assert worker is expected and worker.held
        worker.close()
    worker = ahead.spawn()  # none is left, and on a CPU none is forked
    assert worker.held
    worker.close()


def test_those_that_nobody_had_started_are_started_when_one_is_needed(ahead):
    first = coming(ahead)[0]
    worker = ahead.spawn(no_turn)
    assert worker is first and worker.held
    worker.close()


@pytest.mark.parametrize("before", [True, False], ids=["before its start", "after its start"])
def test_one_that_dies_is_nobodys_failure(ahead, before):
    first, second = coming(ahead)
    if before:
        os.kill(first.pid, signal.SIGKILL)
    ahead.ahead.start(ahead.lease)
    ahead.ahead.settle()
    if not before:
        os.kill(first.pid, signal.SIGKILL)
        assert until(lambda: not first.waits)
    worker = ahead.spawn(no_turn)
    assert worker is second
    worker.close()


def test_a_start_waits_for_a_judge_that_times_and_its_own_judge_goes_on(ahead, tmp_path):
    ahead.lease, other = Lease(tmp_path / "device"), Lease(tmp_path / "device")
    with other.exclusive():
        ahead.ahead.start(ahead.lease)
        time.sleep(0.5)
        assert up(ahead) == [False] * DEPTH
    assert until(lambda: all(up(ahead)))
    ahead.spawn(no_turn).close()


def test_a_judge_with_the_device_in_hand_lets_its_own_start_go_on(ahead, tmp_path):
    ahead.lease = Lease(tmp_path / "device")
    with ahead.lease.shared():
        ahead.ahead.start(ahead.lease)
        assert until(lambda: all(up(ahead)))
    with ahead.lease.exclusive():  # and the start has let the device go
        pass


@pytest.mark.parametrize("started", [True, False])
def test_discarded_ones_are_gone(ahead, started):
    workers = coming(ahead)
    if started:
        ahead.ahead.start(ahead.lease)
        ahead.ahead.settle()
    ahead.ahead.discard()
    assert coming(ahead) == []
    for worker in workers:
        with pytest.raises(WorkerDied):
            worker.ask({"op": "start"}, 5)


def test_no_unit_is_timed_while_a_worker_starts(ahead, judge, monkeypatch):
    """One that was forked ahead and begins to start late: the unit waits for it before its timed calls."""
    late = coming(ahead)[-1]
    start, began, seen = late.start, threading.Event(), []

    def slow(*args):
        began.set()
        time.sleep(1.0)
        start(*args)
        seen.append("started")

    monkeypatch.setattr(late, "start", slow)
    run = Timing.run
    monkeypatch.setattr(Timing, "run", lambda *args: (seen.append("timed"), run(*args))[1])
    assert judge(HONEST).verdict.status == "passed"
    assert began.is_set() and seen[0] == "started" and "timed" in seen


def test_threads_whose_workers_die_at_once_hear_of_their_own(setup):
    """All ends come over the zygote's one channel: no thread takes away what another waits for."""
    workers = [setup.fork() for _ in range(6)]

    def how(worker):
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerDied) as death:
            worker.start()
        worker.close()
        return death.value.how

    with ThreadPoolExecutor(len(workers)) as threads:
        assert set(threads.map(how, workers)) == {"was killed by SIGTERM"}
