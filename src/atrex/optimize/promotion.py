"""Whether a candidate replaces the incumbent: replicated paired rounds, at an error rate held over the whole campaign.

The series of decisions has no planned end, so each gets a share of the campaign's error rate
(`scoring.comparison.spent`). A decision looks at growing numbers of rounds, each look with a share of the decision's; a
candidate that does not look faster is let go early, which costs no error. Overall faster is not enough: a shape that is
shown to be slower, by a bound that holds for all shapes at once, is measured again, and blocks the promotion when it is
shown slower again.

An iteration may have several candidates from one incumbent. They are not tested one by one, which would spend a share
of the error for each, smaller from one to the next. Each is set against the incumbent for `HEAT_ROUNDS` rounds (heats),
the one with the largest mean log ratio is selected, and it alone is decided on, with measurements made after the
selection. Heats favour whoever was lucky in them, but what the decision stands on is independent of them: whichever
candidate comes, one that is no faster is promoted with at most the decision's share. So an iteration spends one
decision, however wide it is. A candidate that was not selected is not rejected: it may be handed in again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from atrex.scoring.comparison import Comparison, Pair, compare_times, rounds_needed, spent

CAMPAIGN_ERROR = 0.05
FUTILE_AFTER, FUTILE_WINS = 4, 1  # so few rounds won of the first ones: no gain is in sight
SLOWDOWN, SLOWDOWN_US = 0.02, 0.3  # a shape may lose the larger of the two
BLOCK_ERROR = 0.05
HEAT_ROUNDS = 3  # the fewest that give an interval; they select, and decide nothing
_FLIPS = 4000

Round = Callable[[Collection[str] | None], Mapping[str, Pair]]
"""Measures incumbent and candidate once on the shapes named, all for None: times of both by shape, in microseconds."""


@dataclass(frozen=True)
class Rule:
    """`error` is the chance that a campaign, however long, promotes a candidate that is no faster than its incumbent.

    `looks` is how often one decision may look before it is "no gain", each time at twice the rounds.
    """

    error: float = CAMPAIGN_ERROR
    looks: int = 5
    margin: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What came of one candidate. `why`: faster, no_gain, futile (no gain in sight), slower_shape (see `slower`)."""

    promoted: bool
    why: Literal["faster", "no_gain", "futile", "slower_shape"]
    number: int
    error: float
    times: dict[str, list[Pair]]
    again: dict[str, list[Pair]] = field(default_factory=dict)
    slower: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        return len(next(iter(self.times.values())))

    @property
    def comparison(self) -> Comparison | None:
        """Ratios and intervals, None for fewer rounds than they take."""
        return compare_times(self.times) if self.rounds >= 3 else None


def decide(measure: Round, number: int, rule: Rule = Rule()) -> Decision:
    """Decide on the `number`-th (from 1) candidate that a campaign compares with an incumbent.

    Raises what `measure` raises, when a unit of one of the two does not pass.
    """
    share = spent(rule.error, number)
    times: dict[str, list[Pair]] = {}
    planned = 0
    for look in range(1, rule.looks + 1):
        level = share / 2**look
        planned = max(rounds_needed(level), 2 * planned)
        while len(next(iter(times.values()), ())) < planned:
            for shape, pair in measure(None).items():
                times.setdefault(shape, []).append(pair)
            if _rounds(times) == FUTILE_AFTER and _won(times, rule.margin) <= FUTILE_WINS:
                return Decision(False, "futile", number, share, times)
        if compare_times(times, margin=rule.margin).p_faster <= level:
            return _look_at_shapes(measure, number, share, times)
        if 2 * _won(times, rule.margin) <= planned:
            return Decision(False, "futile", number, share, times)
    return Decision(False, "no_gain", number, share, times)


def _look_at_shapes(measure: Round, number: int, share: float, times: dict[str, list[Pair]]) -> Decision:
    suspects = slower_shapes(times)
    again: dict[str, list[Pair]] = {}
    if suspects:
        for _ in range(_rounds(times)):
            for shape, pair in measure(suspects).items():
                again.setdefault(shape, []).append(pair)
        slower = slower_shapes(again)
        if slower:
            return Decision(False, "slower_shape", number, share, times, again, tuple(slower))
    return Decision(True, "faster", number, share, times, again)


def slower_shapes(times: Mapping[str, Sequence[Pair]], error: float = BLOCK_ERROR) -> list[str]:
    """Shapes on which B is shown to be slower than A by more than max(2 %, 0.3 us).

    By lower bounds that hold for all shapes at once: mean log ratio less q standard errors, where q is the quantile of
    the largest of the shapes' t statistics under random signs of whole rounds (so that what shapes have in common
    stays). The chance to blame any shape that is no slower is about `error`, however many there are.
    """
    import numpy as np

    names = list(times)
    logs = np.array([[math.log(b / a) for a, b in times[name]] for name in names])  # [shapes, rounds]
    rounds = logs.shape[1]
    mean, error_of = logs.mean(axis=1), logs.std(axis=1, ddof=1) / math.sqrt(rounds)
    edges = [math.log1p(max(SLOWDOWN, SLOWDOWN_US / statistics.median(a for a, _ in times[name]))) for name in names]
    left = logs - mean[:, None]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_FLIPS, rounds))
    flipped = signs @ left.T / rounds  # [flips, shapes]
    spread = np.sqrt(np.maximum((left**2).sum(axis=1) - rounds * flipped**2, 0.0) / (rounds - 1) / rounds)
    largest = np.divide(flipped, spread, out=np.zeros_like(flipped), where=spread > 0).max(axis=1)
    bound = mean - np.quantile(largest, 1 - error) * error_of
    return [name for name, low, edge in zip(names, bound, edges, strict=True) if low > edge]


def _rounds(times: Mapping[str, Sequence[Pair]]) -> int:
    return len(next(iter(times.values())))


def _won(times: Mapping[str, Sequence[Pair]], margin: float) -> int:
    """Rounds in which B was faster on the mean over shapes."""
    edge = math.log1p(margin)
    return sum(
        statistics.fmean(math.log(a / b) for a, b in pairs) > edge for pairs in zip(*times.values(), strict=True)
    )
