"""The bandwidth curve of a measured chip."""

import pytest

from atrex.hardware.curve import BandwidthCurve, ColdMemory

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


def test_a_transfer_faster_than_a_part_of_it_raises_that_parts_curve():
    slow_reads = {(1, 0): BandwidthCurve.envelope([(1e6, 10e9)]), (1, 1): BandwidthCurve.envelope([(2e6, 40e9)])}
    copy = (1e6, 1e6, 2e6 / 40e9)
    assert ColdMemory(slow_reads).seconds(*copy[:2]) > copy[2]
    assert ColdMemory(slow_reads).raised_to([copy]).seconds(*copy[:2]) == pytest.approx(copy[2])


def test_a_mix_between_the_measured_ones_is_bounded_by_the_part_that_fits():
    reads, copies = (BandwidthCurve.envelope([(1e6, rate)]) for rate in (10e9, 20e9))
    memory = ColdMemory({(1, 0): reads, (1, 1): copies})
    assert memory.seconds(1e6, 0.1e6) == pytest.approx(1e6 / 10e9)
    assert memory.seconds(0.1e6, 5e6) == pytest.approx(0.2e6 / 20e9)
    assert memory.seconds(0, 0) == 0
