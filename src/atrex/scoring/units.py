"""Rules about one unit: its score, and whether it is part of the headline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from atrex.scoring.records import CATEGORIES, Stage, Status, UnitRecord

PUBLISHED_SEEDS = 5  # of the published protocol: the Atrex-Bench paper, section 4
_WITHOUT_OUTPUTS = (*CATEGORIES[Stage.COMPILE], "timeout", "exception")
# Shapes that come from serving: those of the release, and those of a suite built from traces.
SCORED_ORIGINS = ("published", "mined")
S_COLUMNS = ("S", "attainable_S", "calibrated_S", "published_S")


def s_j(roofline_us: float, median_us: float) -> float:
    """S_j = T_roofline / T_cand of a unit, both in microseconds; in (0, 1].

    Raises ValueError if a time is not positive and finite, or if S_j is over 1: a time under its lower bound is an
    evaluation error (status `error`, `beyond_roofline`), never clipped. Source: the Atrex-Bench paper, equation 4.
    """
    _positive(roofline_us=roofline_us, median_us=median_us)
    value = roofline_us / median_us
    if value > 1:
        raise ValueError(f"S_j = {value:.6g} is over 1: {median_us:.6g} us is under the roofline {roofline_us:.6g} us")
    return value


def attainable_s(roofline_us: float, floor_us: float, median_us: float) -> float:
    """max(T_roofline, floor) / T_cand, times in microseconds.

    The floor is a measured time, not a bound, so noise can carry this slightly over 1; it is not clipped either.
    Raises ValueError if a time is not positive and finite.
    """
    _positive(roofline_us=roofline_us, floor_us=floor_us, median_us=median_us)
    return max(roofline_us, floor_us) / median_us


def unit_score(record: UnitRecord, column: str = "S") -> float | None:
    """The unit's S_j (or another of `S_COLUMNS`) as recorded, or None when it has none.

    Only a unit that passed has one: a correct unit past its time budget, or one in `error`, has no S_j in any column.
    Raises ValueError if a recorded S is outside (0, 1], or any column is not positive and finite.
    """
    if record.verdict.status != Status.PASSED or not record.correct or record.roofline is None:
        return None
    value = getattr(record.roofline, column)
    if value is None or record.roofline.S is None:
        return None
    if not (math.isfinite(value) and value > 0) or (column == "S" and value > 1):
        raise ValueError(
            f"{record.operator} {record.shape}: roofline.{column} = {value:.6g}, expected "
            f"{'at most 1 and ' if column == 'S' else ''}over 0 (an evaluation error)"
        )
    return value


def timed(record: UnitRecord) -> bool:
    """Whether a unit's time enters ratios: that of a unit in error is the very thing in doubt."""
    return record.correct and record.performance is not None and record.verdict.status != Status.ERROR


def published_correct(record: UnitRecord) -> bool | None:
    """Whether the unit is correct by the published rule (atol 1e-2, rtol 5e-2, five seeds); None if that is not known.

    A unit that ran into a failure before there were outputs is not correct by any rule. One that our own rule stopped
    before its fifth seed, and one of a run with fewer seeds, may or may not be.
    """
    check = record.correctness.published_check if record.correctness is not None else None
    if check is None:
        stopped = record.verdict.status == Status.FAILED and record.verdict.category in _WITHOUT_OUTPUTS
        return False if stopped else None
    seeds = sum(name.startswith("seed") for name in record.correctness.cases)
    return check and (True if seeds >= PUBLISHED_SEEDS else None)


def headline(records: Iterable[UnitRecord]) -> list[UnitRecord]:
    """The units that scores are made of: published or mined shapes, not held out."""
    return [r for r in records if r.origin in SCORED_ORIGINS and not r.held_out]


def unit_key(record: UnitRecord) -> tuple[str, str, str, str, bool]:
    """What makes two records the same unit of a run."""
    return record.candidate, record.device, record.operator, record.shape, record.held_out


def by_operator(records: Sequence[UnitRecord]) -> dict[str, list[UnitRecord]]:
    """The records of one candidate set, operator by operator.

    Raises ValueError if a unit stands twice: scores are defined for one candidate at a time.
    """
    grouped: dict[str, list[UnitRecord]] = {}
    seen: set[tuple[str, str, bool]] = set()
    for record in records:
        key = (record.operator, record.shape, record.held_out)
        if key in seen:
            raise ValueError(f"{record.operator} {record.shape} stands twice: score one candidate set at a time")
        seen.add(key)
        grouped.setdefault(record.operator, []).append(record)
    return grouped


def _positive(**times: float) -> None:
    for name, value in times.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value}, expected a positive time in microseconds")
