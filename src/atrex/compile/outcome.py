"""What the compile gate says of one shape, and the counts of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["compiled", "failed", "undetermined"]
STATUSES: tuple[Status, ...] = ("compiled", "failed", "undetermined")


@dataclass(frozen=True)
class Outcome:
    """One shape of one candidate for one target.

    `artifacts` has every artifact that was asked for, `{name, kind, sha256, bytes, reason}`; `reason` there is empty
    for what was completed. `seconds` is wall time.
    """

    candidate: str
    operator: str
    shape: str
    dsl: str
    target: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    artifacts: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def counts(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Shapes by status and artifacts completed and failed, each with its rate: completed over what could be told.

    Artifacts of different shapes with the same content count once. A rate over nothing is None.
    """
    outcomes = list(outcomes)
    shapes = {status: sum(o.status == status for o in outcomes) for status in STATUSES}
    seen = {
        (o.candidate, o.target, a["name"], a["sha256"] or a["reason"]): not a["reason"]
        for o in outcomes
        for a in o.artifacts
    }
    done = sum(seen.values())
    return {
        "shapes": shapes | {"rate": _rate(shapes["compiled"], shapes["failed"])},
        "artifacts": {"compiled": done, "failed": len(seen) - done, "rate": _rate(done, len(seen) - done)},
    }


def _rate(done: int, failed: int) -> float | None:
    return done / (done + failed) if done + failed else None
