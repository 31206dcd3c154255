"""Chips: dense peaks per engine and dtype, memory bandwidth and caches, each value with its source.

A chip is one JSON file in `chips/`. Every figure there is an object ``{value, unit, source, url | where, date}``; dense
figures only (vendors often print tensor peaks with 2:1 sparsity, the note says so where one was halved).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.hardware.curve import ColdMemory
from atrex.hardware.sanity import check_chip

CHIPS = Path(__file__).parent / "chips"
CPU = "cpu"


@dataclass(frozen=True)
class Chip:
    """One chip's ceilings.

    `peaks` is ``{engine: {dtype: FLOP/s}}`` (dense), `memory_bandwidth` in B/s, sizes in bytes, `max_clock_hz` in Hz;
    None means that no source gives the figure. `uncertainty` is 0 for cited figures and the relative spread of the
    measurements for a calibrated chip. `sources` maps a field ("peaks.matrix.bf16") to its cited object.
    """

    id: str
    name: str
    vendor: str
    arch: str
    fp8: str | None
    peaks: Mapping[str, Mapping[str, float]]
    memory_bandwidth: float
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    llc_bytes: int | None = None
    units: int | None = None
    max_clock_hz: float | None = None
    memory: ColdMemory | None = None
    uncertainty: float = 0.0
    note: str | None = None
    match: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def bandwidth_at(self, total_bytes: float) -> float:
        """B/s that bound a unit moving `total_bytes`: the chip's one figure, or its best measured one there (CPU)."""
        return self.memory.bandwidth_at(total_bytes) if self.memory else self.memory_bandwidth

    def memory_seconds(self, bytes_read: float, bytes_written: float) -> float:
        """The least time in which this chip's memory moves so many bytes; a measured chip knows the mix (CPU)."""
        if self.memory:
            return self.memory.seconds(bytes_read, bytes_written)
        return (bytes_read + bytes_written) / self.memory_bandwidth

    @property
    def cache_bytes(self) -> int | None:
        """The last level of cache, in bytes: what a cold-cache flush has to exceed."""
        return self.llc_bytes or self.l2_bytes


def chip_ids() -> list[str]:
    """The ids of the chips that ship as data files (the CPU is calibrated, not listed)."""
    return sorted(path.stem for path in CHIPS.glob("*.json"))


def load_chip(name: str) -> Chip:
    """The chip `name` (case does not matter), or the calibrated CPU for "cpu".

    Raises UserError for an unknown name and for a chip file that fails a sanity check.
    """
    if name.lower() == CPU:
        from atrex.hardware.calibrate import load_or_calibrate_cpu

        return load_or_calibrate_cpu()
    by_name = {chip_id.lower(): chip_id for chip_id in chip_ids()}
    if name.lower() not in by_name:
        raise UserError(f"unknown chip {name!r}: expected one of {', '.join([*chip_ids(), CPU])}")
    return read_chip(CHIPS / f"{by_name[name.lower()]}.json")


def read_chip(path: Path) -> Chip:
    """Read and check one chip file. Raises UserError naming the file, the field and what was expected."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON (line {error.lineno}: {error.msg})") from None
    return parse_chip(data, str(path))


def parse_chip(data: dict[str, Any], where: str) -> Chip:
    """Build a Chip from the content of a chip file; `where` names the file in errors."""
    check_chip(data, where)

    def number(key: str) -> float | None:
        return data[key]["value"] if key in data else None

    sources = {key: entry for key, entry in data.items() if isinstance(entry, dict) and "value" in entry}
    for engine, by_dtype in data["peaks"].items():
        sources.update({f"peaks.{engine}.{dtype}": entry for dtype, entry in by_dtype.items()})
    return Chip(
        id=data["id"],
        name=data["name"],
        vendor=data["vendor"],
        arch=data["arch"],
        fp8=data["fp8"],
        peaks={engine: {dtype: float(e["value"]) for dtype, e in d.items()} for engine, d in data["peaks"].items()},
        memory_bandwidth=float(data["memory_bandwidth"]["value"]),
        memory_bytes=number("memory_bytes"),
        l2_bytes=number("l2_bytes"),
        llc_bytes=number("llc_bytes"),
        units=number("units"),
        max_clock_hz=number("max_clock"),
        note=data.get("note"),
        match=tuple(data.get("match", ())),
        sources=sources,
    )
