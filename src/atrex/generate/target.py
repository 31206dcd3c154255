"""The chip that candidates are to be written for."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from atrex.dsls.base import get
from atrex.errors import UserError
from atrex.hardware.cache import cpu_model
from atrex.hardware.chip import CPU, Chip, chip_ids, load_chip


@dataclass(frozen=True)
class Target:
    """`chip` is an id of ours, `name` what people call it, `device` the torch device type."""

    chip: str
    name: str
    arch: str
    device: str


def target(dsl: str, arch: str | None, chip: str | None) -> Target:
    """The target that is meant: a chip, or the one with most bandwidth of an architecture, by default the DSL's usual.

    Raises UserError for an unknown chip, one of another architecture, and an architecture that the DSL has no code for.
    """
    if get(dsl).devices[0] == CPU:
        if chip not in (None, CPU) or arch is not None:
            raise UserError(f"--arch, --chip: {dsl} runs on this CPU; leave both out")
        return Target(CPU, cpu_model(), platform.machine(), CPU)
    if chip is not None:
        found = load_chip(chip)
        if arch is not None and not _is(found, arch):
            raise UserError(f"--arch {arch}: {found.id} is {found.arch}")
        return Target(found.id, found.name, _code(found.arch), "cuda")
    arch = arch or get(dsl).usual_target
    if not any(arch.startswith(prefix) for prefix in get(dsl).targets):
        raise UserError(f"--arch {arch}: {dsl} compiles for {', '.join(get(dsl).targets)}")
    chips = [each for each in map(load_chip, chip_ids()) if _is(each, arch)]
    if not chips:
        raise UserError(f"--arch {arch}: no chip of that architecture is known; atrex hardware list shows them")
    best = max(chips, key=lambda each: each.memory_bandwidth)
    return Target(best.id, best.name, arch, "cuda")


def _is(chip: Chip, arch: str) -> bool:
    return chip.arch.rstrip("a") == arch.rstrip("a")


def _code(arch: str) -> str:
    return "sm_90a" if arch == "sm_90" else arch
