"""Sums over activity records, and the choice of a collector."""

import pytest

from atrex.profiling.collector import KernelRecord, busy_us, device_collector, span_us


def record(start: int, end: int) -> KernelRecord:
    return KernelRecord("k", "kernel", start, end, stream=7, correlation=1)


def test_span_runs_from_first_start_to_last_end():
    assert span_us([record(5_000, 6_000), record(1_000, 9_000)]) == 8.0


def test_no_records_have_no_span():
    assert span_us([]) is None


def test_overlapping_records_are_busy_once():
    assert busy_us([record(0, 4_000), record(2_000, 6_000), record(3_000, 3_500), record(8_000, 9_000)]) == 7.0


def test_the_cpu_has_no_device_activity():
    with pytest.raises(ValueError, match="expected cuda"):
        device_collector("cpu")
