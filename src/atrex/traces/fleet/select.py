"""Which mined shapes a suite keeps: buckets by device time up to a coverage, each by its heaviest member.

Device time of different applications is made comparable by their card-hours: a call counts for the application's
share of the fleet's card-hours times its share of the application's device time. A shape whose traced time is under
its roofline cannot be what ran, so it is kept out until somebody explains it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.problems.model import Problem, Shape
from atrex.roofline.bound import roofline
from atrex.traces.fleet.spec import Explained
from atrex.traces.mining import operators
from atrex.traces.mining.mine import Mined

COVERAGE = 0.95
TRIED_BYTES = 64 * 2**20


@dataclass
class Member:
    """One exact shape: all its calls. `scaled`: its device time over the fleet's, by card-hours."""

    init_kwargs: dict[str, Any]
    input_kwargs: dict[str, Any]
    mined: list[Mined]
    scaled: float

    @property
    def shape(self) -> str:
        return self.mined[0].shape

    def us(self) -> dict[str, list[float]]:
        """Microseconds of each call by chip, of chips that a file describes."""
        found: dict[str, list[float]] = {}
        for each in self.mined:
            if each.chip is not None:
                found.setdefault(each.chip, []).extend(ns / 1e3 for ns in each.ns)
        return found


@dataclass
class Bucket:
    """Shapes alike but for dynamic dimensions of the same buckets; `members` heaviest first."""

    members: list[Member]

    @property
    def scaled(self) -> float:
        return sum(m.scaled for m in self.members)

    @property
    def mined(self) -> list[Mined]:
        return [each for member in self.members for each in member.mined]


@dataclass(frozen=True)
class KeptOut:
    """A shape that is not in the suite, and why. `us`: its median traced time on `chip`, against `roofline_us`."""

    operator: str
    init_kwargs: dict[str, Any]
    input_kwargs: dict[str, Any]
    scaled: float
    calls: int
    why: str
    chip: str | None = None
    us: float | None = None
    roofline_us: float | None = None


@dataclass(frozen=True)
class Kept:
    """A shape of the suite: the bucket, the member that stands for it, and what explains a time under the roofline."""

    bucket: Bucket
    member: Member
    explained: str | None = None


@dataclass
class Selection:
    """An operator's shapes, heaviest first. `scaled`: all device time of its calls, `kept_scaled` that of the kept
    buckets, `tail` that of buckets beyond the coverage."""

    operator: str
    kept: list[Kept]
    kept_out: list[KeptOut] = field(default_factory=list)
    scaled: float = 0.0
    tail: float = 0.0
    tail_buckets: int = 0

    @property
    def kept_scaled(self) -> float:
        return sum(k.bucket.scaled for k in self.kept)


def select(
    problem: Problem, mined: Sequence[Mined], factors: Mapping[str, float], coverage: float = COVERAGE,
    explained: Sequence[Explained] = (),
) -> Selection:  # fmt: skip
    """Shapes of one operator. `factors`: application -> what a nanosecond of it counts.

    Buckets are taken by device time until they hold `coverage` of the operator's mined time.
    """
    whole = _buckets(mined, factors)
    total = sum(b.scaled for b in whole)
    found = Selection(problem.operator, [], scaled=total)
    reached = 0.0
    for bucket in whole:
        if reached >= coverage * total * (1 - 1e-12):
            found.tail += bucket.scaled
            found.tail_buckets += 1
            continue
        reached += bucket.scaled
        kept = _representative(problem, bucket, explained, found.kept_out)
        if kept is None:
            continue
        same = next((k for k in found.kept if k.member.shape == kept.member.shape), None)
        if same is None:
            found.kept.append(kept)
        else:  # dimensions that the suite's arguments do not tell apart
            same.bucket.members.extend(bucket.members)
    return found


def _buckets(mined: Sequence[Mined], factors: Mapping[str, float]) -> list[Bucket]:
    grouped: dict[str, dict[str, Member]] = {}
    for each in mined:
        member = grouped.setdefault(each.bucket, {}).setdefault(
            each.shape, Member(each.init_kwargs, each.input_kwargs, [], 0.0)
        )
        member.mined.append(each)
        member.scaled += each.total_ns * factors[each.application]
    found = [Bucket(sorted(m.values(), key=lambda m: -m.scaled)) for m in grouped.values()]
    return sorted(found, key=lambda b: -b.scaled)


def _representative(
    problem: Problem, bucket: Bucket, explained: Sequence[Explained], kept_out: list[KeptOut]
) -> Kept | None:
    """The heaviest member that is sound; those before it are kept out with the reason."""
    for member in bucket.members:
        shape = Shape("mined", member.init_kwargs, member.input_kwargs)
        calls = sum(len(m.ns) for m in member.mined)
        try:
            work = problem.work(shape)
        except UserError as error:
            kept_out.append(KeptOut(problem.operator, member.init_kwargs, member.input_kwargs, member.scaled, calls,
                                    str(error)))  # fmt: skip
            continue
        under = None
        for chip, times in member.us().items():
            bound, us = roofline(work, load_chip(chip)).us, min(statistics.median(times), statistics.fmean(times))
            if us < bound:
                under = KeptOut(
                    problem.operator, member.init_kwargs, member.input_kwargs, member.scaled, calls,
                    _reason(work.total_bytes, chip), chip, us, bound,
                )  # fmt: skip
                break
        if under is None:
            if (fault := _fault(problem, member)) is None:
                return Kept(bucket, member)
            kept_out.append(
                KeptOut(problem.operator, member.init_kwargs, member.input_kwargs, member.scaled, calls, fault)
            )
            continue
        why = next((e.why for e in explained if _meant(e, problem.operator, member)), None)
        if why is not None:
            return Kept(bucket, member, why)
        kept_out.append(under)
    return None


def _fault(problem: Problem, member: Member) -> str | None:
    """Why the suite's problem cannot express a shape: its inputs fail with the smallest dynamic dimensions.

    Shapes that are large even then are not tried.
    """
    dims = member.mined[0].dims
    least = {name: min(1, d.value) if d.bucket is not None else d.value for name, d in dims.items()}
    init, kwargs = operators.module(problem.operator).kwargs(least)
    shape = Shape("smallest", init, kwargs)
    try:
        if problem.work(shape).total_bytes <= TRIED_BYTES:
            problem.make_inputs(shape, 1, "cpu")
    except UserError as error:
        return f"the suite's problem cannot express it: {error}"
    return None


def _reason(total_bytes: int, chip: str) -> str:
    cache = load_chip(chip).cache_bytes
    if cache and total_bytes < cache:
        return (
            f"its {total_bytes / 2**20:.1f} MiB fit into the {cache / 2**20:.0f} MiB cache of {chip}, where serving "
            "leaves them, and the roofline counts memory"
        )
    return (
        "what ran did less than the shape says (a sliding window, a mask, shared prefixes, padding), or "
        "part of its kernels belongs to another family"
    )


def _meant(explained: Explained, operator: str, member: Member) -> bool:
    kwargs = {**member.init_kwargs, **member.input_kwargs}
    return explained.operator == operator and all(kwargs.get(k) == v for k, v in explained.kwargs.items())
