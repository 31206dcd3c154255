"""The native helper, built by the compiler here, and the calibration that uses it."""

import ctypes
import shutil
import time

import numpy as np
import pytest
import torch

from atrex.errors import UserError
from atrex.hardware import native
from atrex.hardware.cache import usable_cpus
from atrex.hardware.calibrate import load_or_calibrate_cpu, recalibrate_cpu

pytestmark = [pytest.mark.alone, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]
flushes = pytest.mark.skipif(
    shutil.which("g++") is None or not native.atrex_flush_supported(), reason="no line flush on this CPU"
)


def best_read_seconds(array, prepare, tries=200):
    best = float("inf")
    for _ in range(tries):
        prepare()
        start = time.perf_counter()
        array.max()
        best = min(best, time.perf_counter() - start)
    return best


@flushes
def test_flushed_lines_are_read_from_memory_again():
    array = np.ones(64 << 10, dtype=np.float32)  # 256 KiB stay in any second-level cache
    flush = native.lib().atrex_flush
    cold = best_read_seconds(array, lambda: flush(array.ctypes.data, array.nbytes))
    hot = best_read_seconds(array, lambda: array.max())
    assert cold > 1.3 * hot
    assert array.sum() == 64 << 10


def test_an_empty_buffer_can_be_flushed():
    native.lib().atrex_flush(None, 0)


def test_a_peak_is_measured_on_every_thread():
    threads, reps = usable_cpus(), 3
    rates = (ctypes.c_double * (threads * reps))()
    assert native.lib().atrex_peak(b"vector.fp32", threads, 1e-4, reps, 1.0, rates) == threads
    assert all(rate > 1e8 for rate in rates)


def test_an_instruction_this_cpu_lacks_is_said():
    assert native.lib().atrex_peak(b"vector.fp4", 1, 1e-4, 1, 1.0, (ctypes.c_double * 1)()) == 0


def test_no_compiler_names_gpp(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"no C\+\+ compiler \(g\+\+\)"):
        native.find_compiler()


def test_a_library_that_does_not_build_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="cannot build the native helper: .*no-such-flag"):
        native.build(tmp_path, flags=(*native.FLAGS, "-no-such-flag"))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return cache, recalibrate_cpu(cache)


@pytest.mark.slow
def test_calibration_of_this_cpu_is_sane(calibrated):
    cache, record = calibrated
    chip = load_or_calibrate_cpu(cache)
    assert 1e9 < chip.memory_bandwidth < 1e13
    assert 1e9 < chip.peaks["vector"]["fp32"] < 1e15
    assert chip.peaks["vector"]["fp64"] < chip.peaks["vector"]["fp32"]
    assert chip.peaks["matrix"]["bf16"] >= record["measurements"]["matmul.bf16"]["best"]
    assert 0 < chip.uncertainty < 1


@pytest.mark.slow
def test_no_measured_transfer_beats_the_curve(calibrated):
    cache, record = calibrated
    memory = load_or_calibrate_cpu(cache).memory
    for point in record["memory"]:
        share = point["bytes"] / (point["read"] + point["written"])
        bound = memory.seconds(share * point["read"], share * point["written"])
        assert bound <= point["bytes"] / point["best"] * (1 + 1e-9)


@pytest.mark.slow
@flushes
def test_an_honest_cold_copy_stays_under_the_ceiling(calibrated):
    cache, _ = calibrated
    chip = load_or_calibrate_cpu(cache)
    flush = native.lib().atrex_flush
    for size in (256 << 10, 4 << 20, 32 << 20):
        source, target = torch.ones(size // 4), torch.empty(size // 4)
        seconds = []
        for _ in range(15):
            flush(source.data_ptr(), size)
            flush(target.data_ptr(), size)
            start = time.perf_counter()
            target.copy_(source)
            seconds.append(time.perf_counter() - start)
        median = sorted(seconds)[7]
        assert chip.memory_seconds(size, size) <= median * (1 + chip.uncertainty)


@pytest.mark.slow
def test_a_fresh_record_is_used_again(calibrated):
    cache, _ = calibrated
    start = time.perf_counter()
    load_or_calibrate_cpu(cache)
    assert time.perf_counter() - start < 1
