"""How a unit's evaluation ends early: one exception per outcome, turned into the verdict in one place."""

from __future__ import annotations

from typing import Any

from atrex.scoring.records import Stage, Status, Verdict


class UnitFailure(Exception):
    """The candidate failed the unit: `stage` and `category` are those of `atrex.scoring.records`."""

    def __init__(self, stage: Stage, category: str, reason: str):
        super().__init__(reason)
        self.stage, self.category, self.reason = stage, category, reason

    def verdict(self) -> Verdict:
        return Verdict(status=Status.FAILED, stage=self.stage, category=self.category, reason=self.reason)


class UnitError(Exception):
    """The unit could not be judged, and the candidate is not shown to be at fault."""

    def __init__(self, category: str, reason: str, stage: Stage | None = None):
        super().__init__(reason)
        self.category, self.reason, self.stage = category, reason, stage

    def verdict(self) -> Verdict:
        return Verdict(status=Status.ERROR, stage=self.stage, category=self.category, reason=self.reason)


class Doubt(Exception):
    """A measurement that cannot stand as it is. It is taken once more in a fresh worker before anything is made of it.

    `category` is what it becomes if the second one is in doubt for the same reason: "integrity" (a failure),
    "beyond_roofline" or "unstable" (errors).
    """

    def __init__(self, category: str, reason: str):
        super().__init__(reason)
        self.category, self.reason = category, reason

    def outcome(self, first: Doubt) -> UnitFailure | UnitError:
        """What the unit ends with: this is the second measurement's doubt, `first` the first one's."""
        both = f"{self.reason}; before, in another worker: {first.reason}"
        if self.category != first.category:
            return UnitError("unstable", f"two measurements in doubt for different reasons: {both}", Stage.PERFORMANCE)
        if self.category == "integrity":
            return UnitFailure(Stage.RUNTIME, "integrity", both)
        return UnitError(self.category, both, Stage.PERFORMANCE)


def raised(answer: dict[str, Any]) -> str:
    """One line for an exception that the worker reported."""
    first = str(answer.get("message") or "").strip().splitlines()
    return f"{answer['raised']}: {first[0] if first else ''}".rstrip(": ")[:500]
