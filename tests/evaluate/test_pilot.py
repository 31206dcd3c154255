"""What the pilot makes of launches on a device: slow ones are no wait."""

from types import SimpleNamespace

import pytest

from atrex.evaluate.performance import LONGER, PILOT_CALLS, Samples, Timing
from atrex.evaluate.timing.cuda import CudaProtocol


def piloted(launch_us):
    """A pilot whose calls take `launch_us(delay_us)` to launch: what it finds, and the delays of its calls."""
    timing = object.__new__(Timing)
    timing.protocol = SimpleNamespace(bounded=lambda us: CudaProtocol.bounded(CudaProtocol, us))
    timing._ask = lambda form, order, calls: SimpleNamespace(host_us=[50.0] * 5)
    delays = []

    def call(samples, adopt):
        delays.append(samples.delay_us)
        samples.launch_us.append(launch_us(samples.delay_us))
        samples.us.append(30.0)

    timing.call = call
    samples = Samples()
    timing.pilot(samples)
    return samples, delays


def test_a_quick_launch_gets_a_delay_that_covers_it():
    samples, delays = piloted(lambda delay: 60.0)
    assert not samples.waits and samples.delay_us == pytest.approx(140.0) and len(delays) == PILOT_CALLS


def test_launches_that_were_slow_are_no_wait():
    samples, delays = piloted(lambda delay: 400.0)
    assert not samples.waits and samples.delay_us == pytest.approx(650.0)
    assert delays[-1] == LONGER * delays[0]


def test_a_forward_that_waits_outlasts_every_delay():
    samples, delays = piloted(lambda delay: delay + 40.0)
    assert samples.waits and samples.delay_us == CudaProtocol.shortest_delay_us and len(delays) == 2 * PILOT_CALLS
