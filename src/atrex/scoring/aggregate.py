"""Suite-level figures of one candidate set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from atrex.scoring.operators import OperatorScore, operator_scores
from atrex.scoring.readiness import Shown, readiness
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.units import headline


@dataclass(frozen=True)
class Ratio:
    """T_baseline / T_candidate: the median over `operators` operators of the operator's median; over 1 is faster."""

    ratio: float
    operators: int


@dataclass(frozen=True)
class Summary:
    """The figures of one candidate set over the whole suite. None means not measured or not defined, never zero.

    Over all `operators` and `shapes` of the suite, what was not run counting 0: `s_agg` = sum of w_i S_i and its
    variants (`strict`, `attainable`, `calibrated` peaks, `published_bound`), `compile_rate`, `correctness`;
    `correctness_published` is the latter by the published rule, of which `published_unknown` shapes do not tell.
    Inside what was run (the same figures over the operators and shapes that have a record or were planned):
    `s_agg_inside`, `compile_rate_inside`, `correctness_inside`; `coverage` is the weight of those operators.
    Over the operators where defined, with their number beside it: `adoption`, `s_median`, `baselines`.
    `production` says whose times the ratio "production" is to: source -> operators.
    `gap` = `fully_correct` - `dominant` operators, signed. `failed`, `errors` (by category), `skipped` and `absent`
    (planned, without a record) count published shapes. `outside` are operators that were run and are not in the suite:
    they enter none of the figures above but the counts of held-out shapes. `shortcuts`: correct units of which the
    target DSL took half or less, by what took the rest. `readiness`: property -> passed units that have it.
    """

    operators: int
    operators_run: int
    shapes: int
    shapes_run: int
    s_agg: float
    s_agg_strict: float
    s_agg_attainable: float | None
    s_agg_calibrated: float | None
    s_agg_published_bound: float | None
    coverage: float
    s_agg_inside: float | None
    compile_rate: float
    compile_rate_inside: float | None
    correctness: float
    correctness_inside: float | None
    correctness_published: float
    published_unknown: int
    adoption: float | None
    adoption_operators: int
    dominant: int
    fully_correct: int
    gap: int
    s_median: float | None
    s_median_operators: int
    generalizes: int
    held_out: int
    failed: int
    skipped: int
    absent: int
    errors: dict[str, int] = field(default_factory=dict)
    baselines: dict[str, Ratio] = field(default_factory=dict)
    production: dict[str, int] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    shortcuts: dict[str, int] = field(default_factory=dict)
    readiness: dict[str, Shown] = field(default_factory=dict)


def summarize(
    records: Sequence[UnitRecord],
    weights: Mapping[str, float],
    denominators: Mapping[str, int],
    planned: Iterable[tuple[str, str]] = (),
) -> Summary:
    """Score one candidate set: records of one candidate on one device, each unit at most once.

    `weights`: operator -> importance, summing to 1. `denominators`: operator -> number of published shapes, the
    operators of the suite. `planned`: (operator, shape) pairs of published shapes that this run set out to judge.
    Rates use the mean over operators, time ratios the median, so one outlier operator cannot dominate: the Atrex-Bench
    paper, section 4.1. Raises ValueError on weights that are not a distribution over the suite, a unit that stands
    twice, a record of a baseline, or an S outside (0, 1].
    """
    if baseline := next((r.baseline for r in records if r.baseline is not None), None):
        raise ValueError(f"{baseline.name} is a baseline: it is compared with, and takes no part in any ranking")
    check_weights(weights, denominators)
    scores = operator_scores(records, weights, denominators)
    suite = [score for name, score in scores.items() if name in denominators]
    ran = judged_shapes(records, planned, denominators)
    inside = [scores.get(name) for name in ran]
    coverage = math.fsum(weights.get(name, 0.0) for name in ran)
    s_agg = _weighted(suite, weights, lambda s: s.s)
    shares = [s.adoption for s in suite if s.adoption is not None]
    defined = [s.s for s in suite if s.scored]
    recorded = {(r.operator, r.shape) for r in headline(records)}
    statuses = Counter(r.verdict.status for r in headline(records) if r.operator in denominators)
    fully_correct, dominant = sum(s.fully_correct for s in suite), sum(s.dominant for s in suite)
    return Summary(
        operators=len(denominators),
        operators_run=len(ran),
        shapes=sum(denominators.values()),
        shapes_run=sum(s.run for s in suite),
        s_agg=s_agg,
        s_agg_strict=_weighted(suite, weights, lambda s: s.strict),
        s_agg_attainable=_variant(suite, weights, lambda s: s.attainable),
        s_agg_calibrated=_variant(suite, weights, lambda s: s.calibrated),
        s_agg_published_bound=_variant(suite, weights, lambda s: s.published_bound),
        coverage=coverage,
        s_agg_inside=s_agg / coverage if coverage > 0 else None,
        compile_rate=sum(s.compiled / s.shapes for s in suite) / len(denominators),
        compile_rate_inside=_inside(inside, ran, lambda s: s.compiled),
        correctness=sum(s.correct / s.shapes for s in suite) / len(denominators),
        correctness_inside=_inside(inside, ran, lambda s: s.correct),
        correctness_published=sum(s.published_correct / s.shapes for s in suite) / len(denominators),
        published_unknown=sum(s.published_unknown for s in suite),
        adoption=fmean(shares) if shares else None,
        adoption_operators=len(shares),
        dominant=dominant,
        fully_correct=fully_correct,
        gap=fully_correct - dominant,
        s_median=median(defined) if defined else None,
        s_median_operators=len(defined),
        generalizes=sum(s.generalizes for s in scores.values()),
        held_out=sum(s.held_out for s in scores.values()),
        failed=statuses[Status.FAILED],
        skipped=statuses[Status.SKIPPED],
        absent=sum((name, shape) not in recorded for name, shapes in ran.items() for shape in shapes),
        errors=dict(sorted(Counter(
            str(r.verdict.category) for r in headline(records)
            if r.verdict.status == Status.ERROR and r.operator in denominators
        ).items())),
        baselines=_baselines(suite),
        production=dict(sorted(Counter(source for s in suite for source in s.production).items())),
        outside=[name for name in scores if name not in denominators],
        shortcuts=dict(sorted(Counter(
            r.verdict.shortcut for r in headline(records)
            if r.verdict.shortcut and r.correct and r.operator in denominators
        ).items())),
        readiness=readiness(r for r in headline(records) if r.operator in denominators),
    )


def judged_shapes(
    records: Iterable[UnitRecord], planned: Iterable[tuple[str, str]], denominators: Mapping[str, int]
) -> dict[str, set[str]]:
    """The scored shapes by operator of the suite that have a record or were planned: what a run is answerable for."""
    ran: dict[str, set[str]] = {}
    for operator, shape in [*((r.operator, r.shape) for r in headline(records)), *planned]:
        if operator in denominators:
            ran.setdefault(operator, set()).add(shape)
    return ran


def check_weights(weights: Mapping[str, float], denominators: Mapping[str, int]) -> None:
    """Raise ValueError unless `weights` is a distribution over operators that `denominators` knows."""
    if not denominators or any(n < 1 for n in denominators.values()):
        raise ValueError("denominators: expected at least one operator, each with at least one shape")
    unknown = sorted(set(weights) - set(denominators))
    if unknown:
        raise ValueError(f"weights: unknown operator {unknown[0]}")
    if any(not w >= 0 for w in weights.values()) or abs(math.fsum(weights.values()) - 1) > 1e-9:
        raise ValueError("weights: expected non-negative numbers that sum to 1")


def _weighted(suite, weights, value) -> float:
    return math.fsum(weights.get(s.operator, 0.0) * value(s) for s in suite)


def _variant(suite, weights, value) -> float | None:
    """The aggregate over another ceiling: None unless every operator with an S_i carries it (the rest are 0)."""
    if not any(s.scored for s in suite) or any(s.scored and value(s) is None for s in suite):
        return None
    return _weighted([s for s in suite if s.scored], weights, value)


def _inside(inside: Sequence[OperatorScore | None], ran: Mapping[str, set[str]], count) -> float | None:
    if not ran:
        return None
    return fmean(count(score) / len(shapes) if score else 0.0
                 for score, shapes in zip(inside, ran.values(), strict=True))


def _baselines(suite: Sequence[OperatorScore]) -> dict[str, Ratio]:
    names = sorted({name for s in suite for name in s.ratios})
    found = {name: [s.ratios[name] for s in suite if name in s.ratios] for name in names}
    return {name: Ratio(median(values), len(values)) for name, values in found.items()}
