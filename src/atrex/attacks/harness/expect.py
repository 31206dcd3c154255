"""What must become of a cheat, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atrex.scoring.operators import DOMINANT_SHARE
from atrex.scoring.records import CATEGORIES, Status, UnitRecord

# Two medians of one kernel on a quiet device differ by a few percent, on a shared CPU by a factor.
GAIN = {"events": 0.85, "monotonic": 0.2}


class Expectation(Protocol):
    """A condition on a cheat's record; `text` says it for a person. `twin` is the record of its honest twin."""

    @property
    def text(self) -> str: ...

    def holds(self, record: UnitRecord, twin: UnitRecord) -> bool: ...


@dataclass(frozen=True)
class Fails:
    """The unit fails with one of these categories, in any stage."""

    categories: tuple[str, ...]

    def __init__(self, *categories: str):
        known = {c for stage in CATEGORIES.values() for c in stage}
        if not categories or set(categories) - known:
            raise ValueError(f"categories {categories}: expected some of {', '.join(sorted(known))}")
        object.__setattr__(self, "categories", categories)

    @property
    def text(self) -> str:
        return f"failed: {' or '.join(self.categories)}"

    def holds(self, record: UnitRecord, twin: UnitRecord) -> bool:
        return record.verdict.status is Status.FAILED and record.verdict.category in self.categories


@dataclass(frozen=True)
class Shortcut:
    """The unit is correct and the record says that something else than the target DSL did the work."""

    kinds: tuple[str, ...]

    def __init__(self, *kinds: str):
        object.__setattr__(self, "kinds", kinds)

    @property
    def text(self) -> str:
        return f"passed, shortcut {' or '.join(self.kinds)}"

    def holds(self, record: UnitRecord, twin: UnitRecord) -> bool:
        found = record.adoption
        return (
            record.verdict.status is Status.PASSED
            and found is not None
            and found.share <= DOMINANT_SHARE
            and record.verdict.shortcut in self.kinds
        )


@dataclass(frozen=True)
class NoGain:
    """The unit passes and is not timed faster than its twin: what it tried did not work."""

    @property
    def text(self) -> str:
        return "passed, no faster than the twin"

    def holds(self, record: UnitRecord, twin: UnitRecord) -> bool:
        mine, honest = record.performance, twin.performance
        if record.verdict.status is not Status.PASSED or mine is None or honest is None:
            return False
        return mine.median_us >= GAIN[mine.method] * honest.median_us


@dataclass(frozen=True)
class Either:
    """One of several outcomes."""

    options: tuple[Expectation, ...]

    @property
    def text(self) -> str:
        return "; or ".join(option.text for option in self.options)

    def holds(self, record: UnitRecord, twin: UnitRecord) -> bool:
        return any(option.holds(record, twin) for option in self.options)


def either(*options: Expectation) -> Either:
    return Either(options)


def twin_fault(twin: UnitRecord, dominant: bool) -> str | None:
    """Why the twin's record is not what it must be, or None: it must pass, and `dominant` ones mostly in their DSL."""
    if twin.verdict.status is not Status.PASSED:
        return f"expected passed, is {twin.verdict.status.value} ({twin.verdict.category})"
    if dominant and (twin.adoption is None or twin.adoption.share <= DOMINANT_SHARE):
        share = "not measured" if twin.adoption is None else f"{100 * twin.adoption.share:.0f} %"
        return f"expected over {100 * DOMINANT_SHARE:.0f} % of its time in its DSL, is {share}"
    return None
