"""The roofline: the least time that a chip's ceilings allow for a unit's semantic work.

Beside ours stands the paper's own ceiling (its equation 1) with the constants of the two chips it is printed for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from atrex.errors import UserError
from atrex.roofline.work import ENGINES, Work

# Which dtypes hold every value of a dtype exactly, so that its work may run in them. Integers and booleans are charged
# at the fp32 rate where a chip lists no integer one: no listed chip runs 32-bit integer arithmetic faster than that.
HOLDERS: dict[str, tuple[str, ...]] = {
    "fp8_e4m3": ("fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp8_e4m3fnuz": ("fp8_e4m3", "fp16", "bf16", "tf32", "fp32", "fp64"),
    "fp16": ("tf32", "fp32", "fp64"),
    "bf16": ("tf32", "fp32", "fp64"),
    "tf32": ("fp32", "fp64"),
    "fp32": ("fp64",),
    "fp64": (),
    "bool": ("int8", "fp16", "bf16", "int32", "fp32"),
    "int8": ("fp16", "bf16", "int32", "fp32"),
    "int32": ("fp32",),
    "int64": ("int32", "fp32"),
}
# float32 products at float32 accuracy from several narrower ones (split operands: three TF32 or six bfloat16 products),
# as CUTLASS, cuBLAS and Triton's input_precision do. A ceiling that ignored them would call such a kernel impossible.
SPLITS: dict[str, tuple[tuple[str, int], ...]] = {"fp32": (("tf32", 3), ("bf16", 6))}


class ChipCeilings(Protocol):
    """What a bound needs of a chip; `atrex.hardware.chip.Chip` is one."""

    @property
    def id(self) -> str: ...
    @property
    def peaks(self) -> Mapping[str, Mapping[str, float]]: ...
    def bandwidth_at(self, total_bytes: float) -> float: ...
    def memory_seconds(self, bytes_read: float, bytes_written: float) -> float: ...


@dataclass(frozen=True)
class Bound:
    """A roofline time in microseconds and what sets it: "memory", "matrix" or "vector"."""

    us: float
    bound: str


def engine_peak(chip: ChipCeilings, engine: str, dtype: str) -> float:
    """FLOP/s at which `chip` can do work of `dtype` on `engine`, at best.

    A dtype that the chip lacks takes the fastest one that holds the operands exactly. Matrix work may also run on the
    vector units, and float32 matrix work as split products. Raises UserError for an unknown engine or dtype and when
    the chip lists nothing that could do the work.
    """
    if engine not in ENGINES:
        raise UserError(f"work: unknown engine {engine!r}: expected {' or '.join(ENGINES)}")
    if dtype not in HOLDERS:
        raise UserError(f"work: unknown dtype {dtype!r}: expected one of {', '.join(HOLDERS)}")
    tables = [chip.peaks["matrix"], chip.peaks["vector"]] if engine == "matrix" else [chip.peaks["vector"]]
    usable = (dtype, *HOLDERS[dtype])
    rates = [table[name] for table in tables for name in usable if name in table]
    if engine == "matrix":
        rates += [tables[0][name] / products for name, products in SPLITS.get(dtype, ()) if name in tables[0]]
    if not rates:
        raise UserError(f"chip {chip.id}: no peak for {dtype} work on the {engine} engine")
    return max(rates)


def roofline(work: Work, chip: ChipCeilings) -> Bound:
    """The largest of Q/B and, per engine, the sum over dtypes of W/P.

    Engines can overlap, so a maximum; one engine runs one dtype at a time, so a sum. The byte term wins a tie.
    """
    seconds = {"memory": chip.memory_seconds(work.bytes_read, work.bytes_written)}
    for engine, by_dtype in work.flops.items():
        seconds[engine] = sum(flops / engine_peak(chip, engine, dtype) for dtype, flops in by_dtype.items() if flops)
    bound = max(seconds, key=lambda term: seconds[term])
    return Bound(us=seconds[bound] * 1e6, bound=bound)


@dataclass(frozen=True)
class PublishedChip:
    """A chip as the published release has it: one peak a dtype (FLOP/s), engines not told apart; bandwidth in B/s."""

    id: str
    peaks: Mapping[str, float]
    memory_bandwidth: float


# Source: hardware constants of the published Atrex-Bench release. They reproduce its roofline time of every unit, which
# is why they are kept apart from the cited chips of `atrex.hardware`.
PUBLISHED_CHIPS = {
    "XPU-A": PublishedChip(
        "XPU-A", {"bf16": 232.65e12, "fp16": 232.65e12, "fp8_e4m3": 465.3e12, "fp32": 29.1e12}, 5.3e12
    ),
    "H20": PublishedChip("H20", {"bf16": 148e12, "fp16": 148e12, "fp8_e4m3": 296e12, "fp32": 44e12}, 4.0e12),
}


def published_roofline(
    flops_total: int, bytes_total: int, dtype: str, chip: str | PublishedChip | ChipCeilings
) -> float:
    """Microseconds by the paper's equation 1: max(F / P_dtype, M / B), all FLOPs at the peak of one dtype.

    `chip` is a published chip, its id, or any `Chip`; of the last, P_dtype is the matrix peak where it has one, else
    the vector peak, and a dtype it lacks takes the fastest that holds it. Raises UserError when there is no such peak.
    """
    if isinstance(chip, str):
        if chip not in PUBLISHED_CHIPS:
            raise UserError(f"no published constants for chip {chip!r}: expected one of {', '.join(PUBLISHED_CHIPS)}")
        chip = PUBLISHED_CHIPS[chip]
    if isinstance(chip, PublishedChip):
        tables, bandwidth = [chip.peaks], chip.memory_bandwidth
    else:
        tables, bandwidth = [chip.peaks["matrix"], chip.peaks["vector"]], chip.bandwidth_at(bytes_total)
    seconds = bytes_total / bandwidth
    if flops_total:
        seconds = max(seconds, flops_total / _peak(tables, dtype, chip.id))
    return seconds * 1e6


def _peak(tables: list[Mapping[str, float]], dtype: str, chip_id: str) -> float:
    for table in tables:
        if dtype in table:
            return table[dtype]
    rates = [table[name] for table in tables for name in HOLDERS.get(dtype, ()) if name in table]
    if not rates:
        raise UserError(f"chip {chip_id}: no peak for {dtype}")
    return max(rates)
