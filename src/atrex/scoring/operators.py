"""Per-operator figures of one candidate set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from atrex.scoring.records import UnitRecord
from atrex.scoring.units import by_operator, headline, published_correct, timed, unit_score

DOMINANT_SHARE = 0.5  # "genuinely dominated (>50 %)" by the target DSL: the Atrex-Bench paper, section 4.3


@dataclass(frozen=True)
class OperatorScore:
    """One operator. None means not defined or not measured, never zero.

    `shapes` is the denominator: every published shape, run or not. `run` counts those with a record, `compiled` and
    `correct` those that passed the gate, `scored` those with an S_j. `published_correct` are those of them all that
    pass the published rule, `published_unknown` those of which the records do not tell.
    `s` is S_i, the median of S_j over the correct shapes that have one, 0 if there is none; whether it is defined, for
    figures that are only taken where they are, is `scored > 0`. `strict` is the median over all `shapes`, where a
    shape without an S_j (failed, absent, over budget, in error) counts 0. `attainable`, `calibrated` and
    `published_bound` are S_i over the other ceilings, None unless every scored shape carries that ceiling.
    `all_origins` is S_i over inferred and Atrex shapes too, None when there are none; it enters no aggregate.
    `adoption` is the mean target-DSL share over the `running` shapes, those whose device time was sampled.
    `ratios` is the median of T_baseline / T_candidate per baseline, over the correct shapes; `production` names whose
    times the ratio "production" is to.
    """

    operator: str
    weight: float | None
    shapes: int
    run: int
    compiled: int
    correct: int
    published_correct: int
    published_unknown: int
    scored: int
    s: float
    strict: float
    attainable: float | None
    calibrated: float | None
    published_bound: float | None
    all_origins: float | None
    adoption: float | None
    running: int
    ratios: dict[str, float]
    generalizes: int
    held_out: int
    production: tuple[str, ...] = ()

    @property
    def fully_correct(self) -> bool:
        return self.correct == self.shapes

    @property
    def dominant(self) -> bool:
        return self.adoption is not None and self.adoption > DOMINANT_SHARE

    @property
    def s_defined(self) -> float | None:
        """S_i where it is defined, else None."""
        return self.s if self.scored else None


def operator_scores(
    records: Sequence[UnitRecord], weights: Mapping[str, float], denominators: Mapping[str, int]
) -> dict[str, OperatorScore]:
    """The operators that have a record, by falling weight and then by name.

    `weights` is operator -> importance, `denominators` operator -> number of published shapes. An operator outside
    `denominators`, or run on more shapes than it says (a folder of one's own), is counted over the shapes that were
    run. Raises ValueError if a unit stands twice.
    """
    grouped = by_operator(records)
    names = sorted(grouped, key=lambda name: (-weights.get(name, 0.0), name))
    return {name: _operator(name, grouped[name], weights.get(name), denominators.get(name)) for name in names}


def _operator(name: str, records: list[UnitRecord], weight: float | None, denominator: int | None) -> OperatorScore:
    units = headline(records)
    shapes = max(denominator or 0, len(units))
    scores = _scores(units)
    listed = [r for r in records if not r.held_out]
    shares = [r.adoption.share for r in units if r.adoption is not None]
    held_out = [r for r in records if r.held_out]
    published = [published_correct(r) for r in units]
    return OperatorScore(
        operator=name,
        weight=weight,
        shapes=shapes,
        run=len(units),
        compiled=sum(r.compiled for r in units),
        correct=sum(r.correct for r in units),
        published_correct=sum(p is True for p in published),
        published_unknown=sum(p is None for p in published),
        scored=len(scores),
        s=median(scores) if scores else 0.0,
        strict=median(scores + [0.0] * (shapes - len(scores))) if shapes else 0.0,
        attainable=_column(units, "attainable_S"),
        calibrated=_column(units, "calibrated_S"),
        published_bound=_column(units, "published_S"),
        all_origins=median(_scores(listed) or [0.0]) if len(listed) > len(units) else None,
        adoption=fmean(shares) if shares else None,
        running=len(shares),
        ratios=_ratios(units),
        generalizes=sum(r.correct for r in held_out),
        held_out=len(held_out),
        production=tuple(sorted({r.production for r in units if r.production and timed(r)})),
    )


def _scores(units: Sequence[UnitRecord]) -> list[float]:
    return [s for r in units if (s := unit_score(r)) is not None]


def _column(units: Sequence[UnitRecord], column: str) -> float | None:
    # A median over the part of the shapes that carry the ceiling would not be comparable with S_i beside it.
    values = [unit_score(r, column) for r in units if unit_score(r) is not None]
    return None if not values or None in values else median(values)


def _ratios(units: Sequence[UnitRecord]) -> dict[str, float]:
    by_baseline: dict[str, list[float]] = {}
    for r in units:
        if timed(r):
            for baseline, us in (r.baselines or {}).items():
                by_baseline.setdefault(baseline, []).append(us / r.performance.median_us)
    return {baseline: median(values) for baseline, values in sorted(by_baseline.items())}
