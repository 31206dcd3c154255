"""Which chip a device string means."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from atrex.errors import UserError
from atrex.hardware.chip import CPU, chip_ids, load_chip


@dataclass(frozen=True)
class DeviceInfo:
    """A device as it is here. `chip` is None when no chip file describes it; `units` counts SMs, CUs or usable CPUs."""

    device: str
    name: str
    chip: str | None
    arch: str
    memory_bytes: int | None = None
    units: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_device(device: str) -> tuple[str, int]:
    """("cpu", 0) or ("cuda", N). Raises UserError for anything else; AMD devices are "cuda:N" too, as in torch."""
    match = re.fullmatch(r"(cpu)|cuda(?::(\d+))?", device)
    if not match:
        raise UserError(f"unknown device {device!r}: expected cpu or cuda:N")
    return ("cpu", 0) if match.group(1) else ("cuda", int(match.group(2) or 0))


def check_device(device: str) -> None:
    """Raise UserError, with the reason, when `device` cannot be used here. Imports torch for CUDA devices only."""
    kind, index = parse_device(device)
    if kind == "cpu":
        return
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        raise UserError(f"device {device}: no CUDA device here (torch was built without CUDA)")
    if not torch.cuda.is_available():
        raise UserError(f"device {device}: no CUDA device here (torch finds no driver or no GPU)")
    count = torch.cuda.device_count()
    if index >= count:
        raise UserError(f"device {device}: no such device, the last of the {count} here is cuda:{count - 1}")


def default_device() -> str:
    """cuda:0 where torch can use a GPU, else cpu."""
    try:
        check_device("cuda:0")
    except (UserError, ImportError):
        return "cpu"
    return "cuda:0"


def match_chip(name: str, memory_bytes: int | None = None) -> str | None:
    """The chip id for a device name as the driver reports it, or None.

    Variants that share a name with a listed chip but not its memory (an A100 of 40 GB, an H100 PCIe or NVL) are not it.
    """
    folded = re.sub(r"[\s_-]+", " ", name).lower()
    for chip_id in sorted(chip_ids(), key=len, reverse=True):
        chip = load_chip(chip_id)
        for pattern in chip.match:
            wanted = re.sub(r"[\s_-]+", " ", pattern).lower()
            if not re.search(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9])", folded):
                continue
            if memory_bytes and chip.memory_bytes and not 0.85 <= memory_bytes / chip.memory_bytes <= 1.15:
                continue
            return chip_id
    return None


def describe(device: str) -> DeviceInfo:
    """What `device` is. Raises UserError when it is unknown or not here."""
    check_device(device)
    kind, index = parse_device(device)
    if kind == "cpu":
        import platform

        from atrex.hardware.cache import cpu_model, usable_cpus

        return DeviceInfo("cpu", cpu_model(), CPU, platform.machine(), units=usable_cpus())
    import torch

    properties = torch.cuda.get_device_properties(index)
    gcn = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    arch = gcn.split(":")[0] or f"sm_{properties.major}{properties.minor}"
    return DeviceInfo(
        device=f"cuda:{index}",
        name=properties.name,
        chip=match_chip(properties.name, properties.total_memory),
        arch=arch,
        memory_bytes=properties.total_memory,
        units=properties.multi_processor_count,
    )


def detect(device: str) -> str:
    """The chip id of `device`. Raises UserError when the device is not here or no chip file describes it."""
    info = describe(device)
    if info.chip is None:
        raise UserError(
            f"device {device}: {info.name} ({info.arch}) is not a listed chip: expected one of {', '.join(chip_ids())}"
        )
    return info.chip


def devices() -> list[DeviceInfo]:
    """Every device here: the CPU, then the GPUs that torch sees. Never raises for absent ones."""
    found = [describe("cpu")]
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except ImportError:
        count = 0
    return found + [describe(f"cuda:{index}") for index in range(count)]
