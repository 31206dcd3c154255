"""Optimization dropout: a restart sees only part of the memory, so that it can come to think of something else.

A policy draws which records are hidden. The baseline, the accepted records and the audit trail never are: what is
hidden is hidden from the next agent's view alone. Draws are seeded, and masks only ever appended to.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Remembered(Protocol):
    """What a policy looks at in a record of the memory."""

    number: int
    category: str
    accepted: bool
    failed: bool


Weight = Callable[[Remembered, Sequence[Remembered]], float]


@dataclass(frozen=True)
class Policy:
    """Hides about `share` of the records that may be hidden, drawn without replacement by `weight`."""

    name: str
    share: float
    weight: Weight


def _uniform(record: Remembered, records: Sequence[Remembered]) -> float:
    return 1.0


def _by_age(record: Remembered, records: Sequence[Remembered]) -> float:
    """The older, the sooner forgotten."""
    newest = max(r.number for r in records)
    return 1.0 + newest - record.number


def _by_failure(record: Remembered, records: Sequence[Remembered]) -> float:
    """What did not even run right says least about where the time goes."""
    return 4.0 if record.failed else 1.0


def _by_category(record: Remembered, records: Sequence[Remembered]) -> float:
    """The more often a direction was tried, the more of its records are hidden: it stops drowning out the others."""
    return float(Counter(r.category for r in records)[record.category])


_SHARE = 0.5
POLICIES = {
    policy.name: policy
    for policy in (
        Policy("none", 0.0, _uniform),
        Policy("uniform", _SHARE, _uniform),
        Policy("age", _SHARE, _by_age),
        Policy("failure", _SHARE, _by_failure),
        Policy("category", _SHARE, _by_category),
    )
}


def draw(policy: Policy, memory: Sequence[Remembered], seed: str) -> list[int]:
    """Numbers of the records to hide in one restart, sorted. The same seed and memory draw the same.

    `memory` are all records; of those that may be hidden, the nearest whole number to `share` of them is.
    """
    free = [record for record in memory if not record.accepted and record.number > 0]
    rng, hidden = random.Random(seed), []
    for _ in range(round(policy.share * len(free))):
        weights = [policy.weight(record, free) for record in free]
        chosen = rng.choices(free, weights)[0]
        free.remove(chosen)
        hidden.append(chosen.number)
    return sorted(hidden)
