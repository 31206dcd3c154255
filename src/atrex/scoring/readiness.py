"""Readiness over a candidate set: how many of the units that were tried have each property."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atrex.scoring.records import UnitRecord

PROPERTIES = {
    "graph_capturable": "a captured CUDA graph computes new operands right",
    "no_host_sync": "forward returns before the device is done",
    "own_stream": "all work goes to the current stream",
    "concurrent": "two calls at once on two streams are right",
    "other_device": "works on a device that is not the current one",
    "bitwise_repeatable": "the same operands give the same bits",
    "large_offsets": "right with an operand of more than 2^31 elements",
}


@dataclass(frozen=True)
class Shown:
    """`yes` of the `tried` units have a property; units where it could not be tried are in neither."""

    yes: int
    tried: int


def readiness(records: Iterable[UnitRecord]) -> dict[str, Shown]:
    """Property -> how many passed units have it. A property that was tried nowhere is left out."""
    found = [r.readiness for r in records if r.readiness]
    shown = {}
    for name in PROPERTIES:
        values = [properties[name] for properties in found if properties.get(name) is not None]
        if values:
            shown[name] = Shown(sum(values), len(values))
    return shown


def unit_readiness(record: UnitRecord) -> Shown | None:
    """How many of the properties that were tried one unit has; None when none was."""
    values = [(record.readiness or {}).get(name) for name in PROPERTIES]
    tried = [value for value in values if value is not None]
    return Shown(sum(tried), len(tried)) if tried else None
