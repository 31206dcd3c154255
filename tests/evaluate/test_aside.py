"""A worker that compiles leaves the device to others: what it says, what the judge does, and who waits for whom."""

import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from atrex.evaluate.channel import Channel, ChannelClosed
from atrex.evaluate.spawn import Worker, WorkerTimeout
from atrex.evaluate.worker import Bench

pytestmark = pytest.mark.alone

DEVICE = {"device": "cpu", "scratch": "/nowhere"}


@pytest.fixture
def ends(monkeypatch):
    """(bench, worker): the two sides of one channel, without a process between them."""
    a, b = socket.socketpair()
    bench = Bench(DEVICE)
    bench.channel, bench.protocol = Channel(a), SimpleNamespace(synchronize=lambda: None)
    worker = Worker.__new__(Worker)
    worker._channel = Channel(b)
    monkeypatch.setattr(worker, "kill", lambda: b.shutdown(socket.SHUT_RDWR))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    yield bench, worker
    a.close()
    b.close()


def answering(worker, bench, within, timeout=5.0, aside=lambda on: None):
    """The judge's answer to an order whose work is `within` the worker's main thread, which is this one."""
    answers = []

    def judge():
        try:
            answers.append(worker.ask_aside({"op": "call"}, timeout, aside))
        except WorkerTimeout:
            answers.append("timeout")

    thread = threading.Thread(target=judge)
    thread.start()
    bench._may_step_aside = bench.channel.receive(5)[0]["aside"]
    with suppress(ChannelClosed):  # killed
        within()
        bench.channel.send({"shown": True})
    thread.join(10)
    return answers[0]


def test_the_judge_gives_the_device_away_while_a_kernel_compiles_and_takes_it_back_before_it_is_launched(ends):
    bench, worker = ends
    events = []

    def forward():
        with bench._step_aside():
            time.sleep(0.2)
            events.append("compiled")
        events.append("launched")

    answer = answering(worker, bench, forward, aside=lambda on: events.append("given away" if on else "back"))
    assert answer == {"shown": True}
    assert events == ["given away", "compiled", "back", "launched"]


def test_for_a_kernel_that_is_found_built_the_device_is_kept(ends):
    bench, worker = ends
    given = []

    def forward():
        with bench._step_aside():
            pass

    assert answering(worker, bench, forward, aside=given.append) == {"shown": True}
    assert given == []


def test_waiting_for_the_device_takes_nothing_from_the_candidate_s_time(ends):
    bench, worker = ends

    def forward():
        with bench._step_aside():
            time.sleep(0.1)

    assert answering(worker, bench, forward, 0.5, lambda on: None if on else time.sleep(0.45)) == {"shown": True}


def test_a_worker_cannot_stretch_its_time_by_stepping_aside_over_and_over(ends):
    bench, worker = ends
    turns = []

    def forward():
        while len(turns) < 100:
            with bench._step_aside():
                time.sleep(0.05)
                turns.append(time.monotonic())

    assert answering(worker, bench, forward, 0.3, lambda on: None if on else time.sleep(0.05)) == "timeout"
    assert 0.5 < turns[-1] - turns[0] < 2  # its own time, and as much again


@pytest.mark.parametrize("why", ["the judge did not allow it", "another thread", "a stream is captured", "nested"])
def test_the_device_is_kept_where_stepping_aside_would_do_harm(ends, monkeypatch, why):
    bench, worker = ends
    seen = []

    def step():
        with bench._step_aside():
            time.sleep(0.1)
            seen.append("compiled")

    def forward():
        if why == "the judge did not allow it":
            bench._may_step_aside = False
            step()
        elif why == "another thread":
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        elif why == "a stream is captured":
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            step()
        else:
            with bench._step_aside():
                step()

    times = []
    assert answering(worker, bench, forward, aside=times.append) == {"shown": True}
    assert seen == ["compiled"]
    assert times == ([True, False] if why == "nested" else [])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_worker_has_as_many_host_threads_as_the_judge_says(monkeypatch, device):
    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(torch, "set_grad_enabled", lambda on: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("atrex.evaluate.worker.protocol_for", lambda *a: SimpleNamespace(warm_up=lambda: None))
    Bench(DEVICE | {"device": device, "threads": 1}).wake()
    assert seen == [1]
