"""Decoding of NVML's answers, with a driver that is simulated."""

import types

import pytest

from atrex.profiling import nvml


class NVMLError(Exception):
    pass


class FakeNvml(types.SimpleNamespace):
    """A pynvml that answers what it is given; any other function is not supported, as on many devices."""

    NVMLError = NVMLError

    def __getattr__(self, name):
        if name.startswith("NVML_"):
            return name
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def not_supported(*_):
            raise NVMLError("Not Supported")

        return not_supported


@pytest.fixture
def driver(monkeypatch):
    fake = FakeNvml(nvmlDeviceGetHandleByIndex=lambda i: ("index", i), nvmlDeviceGetHandleByUUID=lambda u: ("uuid", u))
    monkeypatch.setattr(nvml, "_nvml", lambda pid: fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.parametrize("bits, names", [
    (0, []),
    (0x1, ["idle"]),
    (0x2 | 0x4, ["applications_clocks", "sw_power_cap"]),
    (0x40 | 0x8, ["hw_slowdown", "hw_thermal"]),
    (1 << 20, ["0x100000"]),
])
def test_reason_bits_have_names(bits, names):
    assert nvml.reason_names(bits) == names


@pytest.mark.parametrize("bits, throttled, locked", [
    (0x1, False, None), (0x2, False, True), (0x4, True, None), (0x20 | 0x2, True, True),
])
def test_throttled_and_locked(driver, bits, throttled, locked):
    driver.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: bits
    state = nvml.clocks(0)
    assert (state["throttled"], state["locked"]) == (throttled, locked)


def test_an_applications_clock_off_its_default_is_a_lock(driver):
    driver.nvmlDeviceGetApplicationsClock = lambda handle, kind: 1500
    driver.nvmlDeviceGetDefaultApplicationsClock = lambda handle, kind: 1980
    assert nvml.clocks(0)["locked"] is True


def test_what_is_not_supported_is_none(driver):
    driver.nvmlDeviceGetPowerUsage = lambda handle: 70_500
    state = nvml.clocks(0)
    assert state.pop("power_w") == 70.5
    assert set(state.values()) == {None}


def test_older_drivers_call_the_reasons_throttle_reasons(driver):
    driver.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x4
    assert nvml.clocks(0)["reasons"] == ["sw_power_cap"]


@pytest.mark.parametrize("visible, index, handle", [
    (None, 1, ("index", 1)), ("3,5", 1, ("index", 5)), ("GPU-ab,GPU-cd", 1, ("uuid", "GPU-cd")),
])
def test_cuda_visible_devices_maps_the_index(driver, monkeypatch, visible, index, handle):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = []
    driver.nvmlDeviceGetClockInfo = lambda h, kind: asked.append(h)
    nvml.clocks(index)
    assert asked[0] == handle


def test_other_processes_on_the_device(driver, monkeypatch):
    monkeypatch.setattr(nvml.os, "getpid", lambda: 10)
    running = [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in ((10, 9), (11, 5 << 20), (12, None))]
    driver.nvmlDeviceGetComputeRunningProcesses = lambda handle: running
    assert nvml.compute_processes(0) == [{"pid": 11, "memory_mib": 5}, {"pid": 12, "memory_mib": None}]


def test_without_nvml_everything_is_none(monkeypatch):
    monkeypatch.setattr(nvml, "_nvml", lambda pid: None)
    assert not nvml.available()
    assert (nvml.clocks(0), nvml.compute_processes(0), nvml.driver_version()) == (None, None, None)
