"""A compilation target: an architecture as compilers name it, and the chip whose figures launch code asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atrex.errors import UserError
from atrex.hardware.chip import Chip, chip_ids, load_chip

# Of several chips of one architecture, the one that a bare architecture stands for.
_USUAL = {"sm_90": "H200", "gfx942": "MI300X"}

# Bytes of shared memory that one block may use. NVIDIA: CUDA C++ Programming Guide, technical specifications per
# compute capability, "maximum amount of shared memory per thread block". AMD: LDS per workgroup, CDNA 3 and CDNA 4
# instruction set architecture reference guides.
_SHARED = {
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_103": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
    "gfx950": 160 << 10,
}


@dataclass(frozen=True)
class Target:
    """What is compiled for. `arch` is the name without NVIDIA's suffix ("sm_90" of "sm_90a"), "cpu" for the host.

    `chip` gives names and figures to launch code; None where no chip file has that architecture, and for the host.
    """

    name: str
    arch: str
    chip: Chip | None

    @property
    def backend(self) -> str:
        """ "cuda", "hip" or "cpu"."""
        if self.arch == "cpu":
            return "cpu"
        return "cuda" if self.arch.startswith("sm_") else "hip"

    @property
    def capability(self) -> int:
        """NVIDIA's compute capability as Triton writes it: 90 for sm_90."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def warp_size(self) -> int:
        """Lanes per warp: 64 on CDNA (gfx9), 32 elsewhere."""
        return 64 if self.arch.startswith("gfx9") else 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory that one block may use; the smallest listed for an architecture that is not."""
        return _SHARED.get(self.arch, min(_SHARED.values()))

    @property
    def units(self) -> int | None:
        """SMs or CUs of the chip."""
        return self.chip.units if self.chip else None


def parse_target(name: str) -> Target:
    """A target by architecture (sm_90a, gfx942), by chip (H20, MI308X), or "cpu". Raises UserError for anything else.

    A bare architecture takes the figures of one chip that has it: H200 for sm_90, MI300X for gfx942.
    """
    if name == "cpu":
        return Target(name, name, None)
    if match := re.fullmatch(r"(sm_\d{2,3})[af]?|(gfx[0-9a-f]{3,4})", name):
        arch = match.group(1) or match.group(2)
        return Target(name, arch, _chip_of(arch))
    by_name = {chip_id.lower(): chip_id for chip_id in chip_ids()}
    if chip_id := by_name.get(name.lower()):
        chip = load_chip(chip_id)
        if re.fullmatch(r"sm_\d+|gfx[0-9a-f]+", chip.arch):
            return Target(chip_id, chip.arch, chip)
    raise UserError(f"--target {name}: expected cpu, an architecture such as sm_90a or gfx942, or a chip such as H200")


def _chip_of(arch: str) -> Chip | None:
    if arch in _USUAL:
        return load_chip(_USUAL[arch])
    return next((chip for chip in map(load_chip, chip_ids()) if chip.arch == arch), None)
