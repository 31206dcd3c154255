"""The bandwidth curve of a measured chip."""

import pytest

from atrex.hardware.curve import BandwidthCurve

POINTS = [(64e3, 30e9), (64e3, 41e9), (1e6, 22e9), (16e6, 25e9), (256e6, 20e9)]


def test_no_point_lies_above_the_curve():
    curve = BandwidthCurve.envelope(POINTS)
    assert all(curve.bandwidth_at(size) >= bandwidth for size, bandwidth in POINTS)


def test_moving_more_bytes_never_takes_less_time():
    curve = BandwidthCurve.envelope([*POINTS, (1.1e6, 40e9)])
    sizes = [1e3 * 1.1**i for i in range(150)]
    times = [size / curve.bandwidth_at(size) for size in sizes]
    assert times == sorted(times)


def test_a_slow_small_size_is_raised_to_what_a_larger_one_reached():
    curve = BandwidthCurve.envelope([(1e6, 10e9), (2e6, 30e9)])
    assert curve.bandwidth_at(1e6) == pytest.approx(15e9)


def test_outside_the_measured_sizes_the_ends_hold():
    curve = BandwidthCurve.envelope(POINTS)
    assert curve.bandwidth_at(1) == curve.bandwidth_at(64e3)
    assert curve.bandwidth_at(1e12) == curve.bandwidth_at(256e6)


def test_no_points_is_an_error():
    with pytest.raises(ValueError, match="at least one point"):
        BandwidthCurve.envelope([])
