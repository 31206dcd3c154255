"""Clocks, throttling, power and other processes of an NVIDIA device, through NVML (the nvidia-ml-py package).

Everything is tolerant: a value that the driver, the device or a container does not give is None, never a guess.
Devices are given as a CUDA index, which `CUDA_VISIBLE_DEVICES` maps, or as a UUID ("GPU-...").
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

# nvmlClocksEventReasons, NVML API reference; the last two exist in newer drivers only.
EVENT_REASONS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
# Idling and clocks that somebody chose are no loss of speed.
THROTTLING = frozenset(EVENT_REASONS.values()) - {"idle", "applications_clocks", "display_clock"}


def available() -> bool:
    """Whether NVML can be used here (driver and nvidia-ml-py present)."""
    return _nvml(os.getpid()) is not None


def driver_version() -> str | None:
    """The NVIDIA driver's version, None without one."""
    return _ask(lambda nvml: nvml.nvmlSystemGetDriverVersion())


def reason_names(bits: int) -> list[str]:
    """Names of the set bits; a bit this table does not know comes as its hexadecimal value."""
    known = [name for bit, name in EVENT_REASONS.items() if bits & bit]
    unknown = bits & ~sum(EVENT_REASONS)
    return known + ([hex(unknown)] if unknown else [])


def clocks(device: int | str) -> dict[str, Any] | None:
    """A snapshot of the device's state; None without NVML or without that device.

    `sm_mhz`, `mem_mhz`: current clocks; `max_sm_mhz`; `reasons`: names of the active clock event reasons; `throttled`:
    whether one of them slows the device; `locked`: True when an applications clock is set, None when NVML does not say
    (it cannot read back a lock set as minimum and maximum); `power_w`, `power_limit_w`, `temperature_c`;
    `persistence`: whether the driver keeps the device initialized.
    """
    return _ask(lambda nvml: _clocks(nvml, _handle(nvml, device)))


def compute_processes(device: int | str) -> list[dict[str, Any]] | None:
    """Processes with a compute context on the device, as `{"pid", "memory_mib"}`; None where NVML does not say.

    This process is left out. In a container, NVML may give the numbers of the host's process table, or nothing at all.
    """

    def processes(nvml: ModuleType) -> list[dict[str, Any]]:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(_handle(nvml, device))
        return [
            {"pid": p.pid, "memory_mib": None if p.usedGpuMemory is None else p.usedGpuMemory // (1 << 20)}
            for p in found
            if p.pid != os.getpid()
        ]

    return _ask(processes)


def _clocks(nvml: ModuleType, handle: Any) -> dict[str, Any]:
    def get(read: Callable[[], Any]) -> Any:
        try:
            return read()
        # AttributeError: an nvidia-ml-py older or newer than the name
        except (nvml.NVMLError, AttributeError):
            return None

    bits = get(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if bits is None:
        bits = get(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    reasons = None if bits is None else reason_names(bits)
    application = get(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM))
    default = get(lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_SM))
    chosen = application is not None and default is not None and application != default
    power = get(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = get(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    persistence = get(lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    return {
        "sm_mhz": get(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "mem_mhz": get(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "max_sm_mhz": get(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "reasons": reasons,
        "throttled": None if reasons is None else bool(THROTTLING & set(reasons)),
        "locked": True if chosen or "applications_clocks" in (reasons or ()) else None,
        "power_w": None if power is None else power / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "temperature_c": get(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "persistence": None if persistence is None else bool(persistence),
    }


@cache
def _nvml(pid: int) -> ModuleType | None:
    """NVML, initialized once a process (a fork inherits the library, not the session)."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no permission: all mean that NVML is not available
        return None
    return pynvml


def _ask(question: Callable[[ModuleType], Any]) -> Any:
    nvml = _nvml(os.getpid())
    if nvml is None:
        return None
    try:
        return question(nvml)
    except (nvml.NVMLError, AttributeError):
        return None


def _handle(nvml: ModuleType, device: int | str) -> Any:
    """The NVML handle of a CUDA index or UUID. CUDA and NVML number alike where all devices are of one model."""
    if isinstance(device, int):
        visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
        device = visible[device] if device < len(visible) else str(device)
    if device.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    return nvml.nvmlDeviceGetHandleByUUID(device)
