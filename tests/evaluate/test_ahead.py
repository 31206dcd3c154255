"""The worker that is forked ahead: its device starts beside what the judge does, in a turn of its own."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atrex.evaluate.lease import Alone, Lease
from atrex.evaluate.spawn import WorkerDied


@pytest.fixture
def ahead(setup):
    """The session's setup with a worker forked ahead, as a device has one; none is left over."""
    setup._next = setup._fork()
    yield setup
    setup.discard_next()
    setup.lease = Alone()


def until(holds):
    deadline = time.monotonic() + 5
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def no_turn():
    raise AssertionError("a worker that was started ahead needs no turn on the device")


def test_a_worker_started_ahead_is_the_next_one(ahead):
    forked = ahead._next
    ahead.start_next()
    ahead.start_next()  # asked twice, started once
    worker = ahead.spawn(no_turn)
    assert worker is forked and worker.held
    assert ahead._next is None
    worker.close()


def test_one_that_dies_while_it_starts_is_replaced(ahead):
    forked = ahead._next
    forked.kill()
    ahead.start_next()
    worker = ahead.spawn()
    assert worker is not forked and worker.held
    worker.close()


def test_a_start_waits_for_a_judge_that_times_and_its_own_judge_goes_on(ahead, tmp_path):
    ahead.lease, other = Lease(tmp_path / "device"), Lease(tmp_path / "device")
    with other.exclusive():
        ahead.start_next()
        time.sleep(0.5)
        assert not ahead._started.done()
    assert until(ahead._started.done)
    ahead.spawn(no_turn).close()


def test_a_judge_with_the_device_in_hand_lets_its_own_start_go_on(ahead, tmp_path):
    ahead.lease = Lease(tmp_path / "device")
    with ahead.lease.shared():
        ahead.start_next()
        assert until(ahead._started.done)
    with ahead.lease.exclusive():  # and the start has let the device go
        pass


def test_a_discarded_one_is_gone_started_or_not(ahead):
    first = ahead._next
    ahead.discard_next()
    second = ahead._next = ahead._fork()
    ahead.start_next()
    assert until(ahead._started.done)
    ahead.discard_next()
    for worker in (first, second):
        with pytest.raises(WorkerDied):
            worker.ask({"op": "start"}, 5)


def test_threads_whose_workers_die_at_once_hear_of_their_own(setup):
    """All ends come over the zygote's one channel: no thread takes away what another waits for."""
    workers = [setup._fork() for _ in range(6)]

    def how(worker):
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerDied) as death:
            worker.start()
        worker.close()
        return death.value.how

    with ThreadPoolExecutor(len(workers)) as threads:
        assert set(threads.map(how, workers)) == {"was killed by SIGTERM"}
