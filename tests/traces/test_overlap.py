"""Exclusive device time: every instant of a device once."""

import numpy as np
import pytest

from atrex.traces.overlap import exclusive


def share(records, cut_earlier=False):
    """records: (device, stream, start, dur)."""
    columns = [np.array(c, dtype=np.int64) for c in zip(*records, strict=True)]
    found, overlapping = exclusive(*columns, cut_earlier)
    return found.tolist(), overlapping


def test_records_apart_keep_their_duration():
    assert share([(0, 7, 0, 10), (0, 7, 10, 5), (0, 8, 20, 3)]) == ([10, 5, 3], 0)


def test_early_launch_on_one_stream_waits_for_the_earlier_kernel():
    assert share([(0, 7, 0, 10), (0, 7, 6, 10)]) == ([10, 6], 1)


def test_a_recorded_end_that_runs_into_the_next_kernel_is_cut_on_amd():
    assert share([(0, 7, 0, 1_600_000), (0, 7, 100, 50)], cut_earlier=True) == ([100, 50], 1)


def test_streams_that_run_at_once_share():
    assert share([(0, 7, 0, 10), (0, 8, 4, 10)])[0] == [4 + 3, 3 + 4]


def test_devices_do_not_share():
    assert share([(0, 7, 0, 10), (1, 7, 0, 10)])[0] == [10, 10]


@pytest.mark.parametrize("cut_earlier", [False, True])
def test_the_sum_is_the_time_the_device_was_busy(cut_earlier):
    """Where ends are cut, what the longer record claims after the cut is not counted."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 3, 200), rng.integers(0, 2000, 200), rng.integers(0, 40, 200)
    records = [(0, int(s), int(t), int(d)) for s, t, d in zip(*columns, strict=True)]
    busy = np.zeros(3000, dtype=bool)
    for _, _, start, dur in records:
        busy[start : start + dur] = True
    found, _ = share(records, cut_earlier)
    assert sum(found) <= busy.sum() + 1e-6 if cut_earlier else sum(found) == pytest.approx(busy.sum())
    assert min(found) >= 0 and sum(found) > 0.9 * busy.sum()


def test_scaling_the_clock_scales_every_share():
    records = [(0, 7, 0, 10), (0, 8, 4, 10), (0, 7, 12, 6)]
    scaled = [(d, s, 1000 * t, 1000 * u) for d, s, t, u in records]
    assert share(scaled)[0] == [1000 * x for x in share(records)[0]]
