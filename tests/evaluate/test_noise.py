"""Noise beside a batch is named, and what is noisy is measured once more before it is an error."""

import pytest

from atrex.evaluate.noise import Sentinel, Watch, busy_cores
from atrex.evaluate.unit import UnitJudge
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone


class FixedSentinel:
    """Samples as they are given; 100 us when the device is quiet."""

    baseline_us = 100.0

    def __init__(self, *samples):
        self._left = list(samples)

    def sample(self):
        return self._left.pop(0) if self._left else 100.0

    def wait_calm(self, seconds):
        return True


def watched(*samples):
    watch = Watch(FixedSentinel(*samples))
    for _ in samples:
        watch.look()
    return watch


def test_samples_near_the_baseline_are_no_noise():
    assert watched(100.0, 101.5, 99.0).noise(None) is None


def test_one_stretched_sample_is_noise_and_says_by_how_much():
    watch = watched(100.0, 100.0 * Sentinel.DRIFT + 1, 100.0)
    assert "up to 111 us, 100 us when it is quiet" in watch.noise(None)
    assert watch.record()["drift"] == pytest.approx(1.11)


@pytest.mark.parametrize(
    ("reasons", "noisy"), [(["hw_thermal"], True), (["idle", "sw_power_cap"], False), (None, False)]
)
def test_a_throttled_device_is_noise_and_a_power_cap_is_not(reasons, noisy):
    assert (Watch(None).noise({"reasons": []}, {"reasons": reasons}) is not None) is noisy


def test_without_a_sentinel_nothing_is_recorded():
    watch = Watch(None)
    watch.look()
    assert watch.record() is None and watch.noise() is None


def with_sentinel(setup, monkeypatch, *samples):
    monkeypatch.setattr(setup, "sentinel", FixedSentinel(*samples))


def test_a_noisy_unit_is_measured_again_and_the_quiet_measurement_counts(judge, setup, monkeypatch):
    with_sentinel(setup, monkeypatch, 150.0)
    record = judge(HONEST)
    assert record.verdict.status == "passed"
    assert "something else ran on the device" in record.performance.remeasured
    assert record.performance.sentinel["drift"] == 1.0


def test_a_unit_that_stays_noisy_is_unstable_and_still_correct(judge, setup, monkeypatch):
    with_sentinel(setup, monkeypatch, *[150.0] * 50)
    record = judge(HONEST)
    assert (record.verdict.status, record.verdict.category) == ("error", "unstable")
    assert record.correct and record.roofline.S is None


def test_throttling_in_both_measurements_is_unstable(setup, suite, judge, monkeypatch):
    real = UnitJudge.__init__

    def throttled(self, setup, unit, clocks=None, **extras):
        real(self, setup, unit, lambda: {"reasons": ["hw_slowdown"]}, **extras)

    monkeypatch.setattr(UnitJudge, "__init__", throttled)
    record = judge(HONEST)
    assert record.verdict.category == "unstable" and "hw_slowdown" in record.verdict.reason


@pytest.mark.parametrize(("load", "told"), [(0.5, False), (1e6, True)])
def test_a_machine_whose_cores_are_taken_is_said(monkeypatch, load, told):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    line = busy_cores()
    assert (line is not None) == told and (not told or "load 1000000.0" in line)
