"""Is one kernel faster than another? From paired times, measured in fresh processes, to intervals and a decision.

A round measures both kernels once on every shape, in an order drawn anew for each pair; rounds are the replicates. All
statistics are on the logarithm of the time ratio of a pair, so that 2x faster and 2x slower weigh the same.

Test and interval are two sides of one thing: p-values are of Wilcoxon's signed-rank test, estimates are Hodges and
Lehmann's (the median of the means of all pairs of rounds, "Walsh averages"), and an interval holds the ratios that the
test does not reject. So they cannot contradict each other, and one disturbed round moves neither far.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

Pair = tuple[float, float]
"""Times of A and of B in one round, in microseconds."""

MIN_ROUNDS = 3


@dataclass(frozen=True)
class Interval:
    """How many times as fast as A kernel B is: T_A / T_B, and its confidence interval. Over 1, B is faster."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class ShapeComparison:
    """One shape: the medians of A and of B over the rounds, in microseconds, and the interval of their ratio."""

    shape: str
    a_us: float
    b_us: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    """All shapes: `overall` is the geometric mean of the shapes' ratios, with the rounds as replicates.

    `p_faster` is the one-sided p-value of "B is not faster than A" (times 1 + margin), `p_slower` of "B is not slower".
    `confidence` is what was asked for, `attained` the exact one of the intervals: the least that is not under it, or
    where the rounds are too few for it, that of all Walsh averages. An interval with at least the confidence asked for
    lies above 1 + margin where `p_faster` is at most half of what the confidence leaves, and only there.
    """

    shapes: tuple[ShapeComparison, ...]
    overall: Interval
    rounds: int
    confidence: float
    attained: float
    p_faster: float
    p_slower: float


def compare_times(times: Mapping[str, Sequence[Pair]], confidence: float = 0.95, margin: float = 0.0) -> Comparison:
    """Compare kernels A and B by shape id -> one pair of times a round.

    P-values are exact signed-rank tests over the rounds' mean log ratios (`scipy.stats.wilcoxon`), which need no
    distribution beyond symmetry and cannot be under 2^-rounds; intervals invert them. Symmetry holds for equal kernels
    because the order within a pair is drawn.
    `margin` is how much faster B has to be to count as faster (0.02 is 2 %). Raises ValueError for shapes with unequal
    or fewer than three rounds, and for times that are not positive.
    """
    logs = _logs(times)
    rounds = len(next(iter(logs.values())))
    shapes = tuple(
        ShapeComparison(
            shape,
            statistics.median(a for a, _ in pairs),
            statistics.median(b for _, b in pairs),
            _interval(logs[shape], confidence),
        )
        for shape, pairs in times.items()
    )
    by_round = _by_round(logs)
    edge = math.log1p(margin)
    return Comparison(
        shapes,
        _interval(by_round, confidence),
        rounds,
        confidence,
        float(1 - 2 * _tail(rounds)[_left_out(rounds, confidence)]),
        _p_positive([v - edge for v in by_round]),
        _p_positive([-v - edge for v in by_round]),
    )


def p_faster(times: Mapping[str, Sequence[Pair]], margin: float = 0.0) -> float:
    """The `p_faster` of `compare_times`, alone."""
    edge = math.log1p(margin)
    return _p_positive([v - edge for v in _by_round(_logs(times))])


def _logs(times: Mapping[str, Sequence[Pair]]) -> dict[str, list[float]]:
    """Log ratios A / B by shape, a round each. Raises ValueError as `compare_times` does."""
    rounds = {len(pairs) for pairs in times.values()}
    if len(rounds) != 1 or min(rounds) < MIN_ROUNDS:
        raise ValueError(f"every shape needs the same number of rounds, at least {MIN_ROUNDS}; got {sorted(rounds)}")
    if not all(t > 0 and math.isfinite(t) for pairs in times.values() for pair in pairs for t in pair):
        raise ValueError("times must be positive and finite")
    return {shape: [math.log(a / b) for a, b in pairs] for shape, pairs in times.items()}


def _by_round(logs: Mapping[str, Sequence[float]]) -> list[float]:
    return [statistics.fmean(values) for values in zip(*logs.values(), strict=True)]


def spent(alpha: float, number: int) -> float:
    """The error rate for the `number`-th (from 1) decision of a series that errs at `alpha` as a whole.

    alpha * 6 / (pi^2 n^2): the shares of an endless series sum to alpha, so the series needs no planned end.
    """
    if number < 1:
        raise ValueError(f"decisions are counted from 1, got {number}")
    return alpha * 6 / (math.pi**2 * number**2)


def rounds_needed(alpha: float) -> int:
    """The fewest rounds after which the test can fall under `alpha`."""
    return max(MIN_ROUNDS, math.ceil(-math.log2(alpha)))


def _interval(values: Sequence[float], confidence: float) -> Interval:
    """Hodges and Lehmann's estimate of the centre, and the centres that the signed-rank test does not reject."""
    import numpy as np

    each = np.asarray(values)
    walsh = np.sort(((each[:, None] + each[None, :]) / 2)[np.triu_indices(len(each))])
    out = _left_out(len(each), confidence)
    return Interval(*(math.exp(v) for v in (np.median(walsh), walsh[out], walsh[-1 - out])))


def _left_out(rounds: int, confidence: float) -> int:
    """How many Walsh averages lie outside an interval on either side: the most of which the confidence is attained."""
    import numpy as np

    return max(0, int(np.searchsorted(_tail(rounds), (1 - confidence) / 2 * (1 + 1e-9), side="right")) - 1)


@lru_cache(maxsize=64)
def _tail(rounds: int) -> Sequence[float]:
    """P(W <= w) for w from 0, W being the signed-rank statistic of values symmetric about zero."""
    import numpy as np

    mass = np.zeros(rounds * (rounds + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, rounds + 1):  # every rank counts with probability 1/2
        shifted = np.zeros_like(mass)
        shifted[rank:] = mass[:-rank]
        mass = (mass + shifted) / 2
    return np.cumsum(mass)


def _p_positive(values: Sequence[float]) -> float:
    """One-sided p-value of "the values are symmetric about zero" against "they lie above it".

    Wilcoxon's signed-rank test, exact for any number of rounds, so that it can fall under a small error rate; ranks
    also keep one disturbed round from deciding.
    """
    from scipy import stats

    if not any(values):
        return 1.0
    return float(stats.wilcoxon(values, alternative="greater", method="exact").pvalue)
