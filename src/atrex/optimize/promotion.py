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

A decision may end undecided (`patience`): it promotes nothing, spends its share, and says nothing about the candidate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from atrex.optimize.patience import Bounds, GaveUp, Patience
from atrex.scoring.comparison import Comparison, Pair, compare_times, p_faster, rounds_needed, spent

CAMPAIGN_ERROR = 0.05
FUTILE_AFTER, FUTILE_WINS = 4, 1  # so few rounds won of the first ones: no gain is in sight
SLOWDOWN, SLOWDOWN_US = 0.02, 0.3  # a shape may lose the larger of the two
BLOCK_ERROR = 0.05
HEAT_ROUNDS = 3  # the fewest that give an interval; they select, and decide nothing
_FLIPS = 4000
ANY = Bounds()

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
    """What came of one candidate. `level` is that of the last look's test, `error` the share of the whole decision.

    `why`: faster, no_gain, futile (no gain in sight), slower_shape (see `slower`), undecided (see `reason`).
    """

    promoted: bool
    why: Literal["faster", "no_gain", "futile", "slower_shape", "undecided"]
    number: int
    error: float
    level: float
    times: dict[str, list[Pair]]
    again: dict[str, list[Pair]] = field(default_factory=dict)
    slower: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def rounds(self) -> int:
        """Those on all shapes."""
        return _rounds(self.times)

    @property
    def comparison(self) -> Comparison | None:
        """Ratios and intervals, None for fewer rounds than they take.

        Two-sided, with the test's level on either side: the overall interval lies above 1 where the test that decided
        says "faster", and only there.
        """
        return compare_times(self.times, 1 - 2 * self.level) if self.rounds >= 3 else None


def decide(measure: Round, number: int, rule: Rule = Rule(), bounds: Bounds = ANY) -> Decision:
    """Decide on the `number`-th (from 1) candidate that a campaign compares with an incumbent.

    Where `measure` raises GaveUp, or the bounds are met, it is undecided. Raises what else `measure` raises, when a
    unit of one of the two does not pass.
    """
    contest = _Contest(measure, number, rule, Patience(bounds))
    try:
        return contest.run()
    except GaveUp as why:
        return contest.ended("undecided", reason=str(why))


class _Contest:
    """One decision on its way."""

    def __init__(self, measure: Round, number: int, rule: Rule, patience: Patience):
        self._measure, self._number, self._rule, self._patience = measure, number, rule, patience
        self._share = spent(rule.error, number)
        self._level = self._share / 2
        self._times: dict[str, list[Pair]] = {}
        self._again: dict[str, list[Pair]] = {}

    def run(self) -> Decision:
        rule, times, planned = self._rule, self._times, 0
        for look in range(1, rule.looks + 1):
            self._level = self._share / 2**look
            planned = max(rounds_needed(self._level), 2 * planned)
            while _rounds(times) < planned:
                self._round(times, None, planned)
                if _rounds(times) == FUTILE_AFTER and _won(times, rule.margin) <= FUTILE_WINS:
                    return self.ended("futile")
            if p_faster(times, rule.margin) <= self._level:
                return self._look_at_shapes()
            if 2 * _won(times, rule.margin) <= planned:
                return self.ended("futile")
        return self.ended("no_gain")

    def ended(self, why: str, slower: Sequence[str] = (), reason: str | None = None) -> Decision:
        return Decision(
            promoted=why == "faster", why=why, number=self._number, error=self._share, level=self._level,
            times=self._times, again=self._again, slower=tuple(slower), reason=reason,
        )  # fmt: skip

    def _round(self, into: dict[str, list[Pair]], shapes: Collection[str] | None, planned: int) -> None:
        self._patience.before(planned - _rounds(into), planned)
        for shape, pair in self._measure(shapes).items():
            into.setdefault(shape, []).append(pair)
        self._patience.after(into)

    def _look_at_shapes(self) -> Decision:
        suspects = slower_shapes(self._times)
        if suspects:
            for _ in range(_rounds(self._times)):
                self._round(self._again, suspects, _rounds(self._times))
            slower = slower_shapes(self._again)
            if slower:
                return self.ended("slower_shape", slower)
        return self.ended("faster")


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
    return len(next(iter(times.values()), ()))


def _won(times: Mapping[str, Sequence[Pair]], margin: float) -> int:
    """Rounds in which B was faster on the mean over shapes."""
    edge = math.log1p(margin)
    return sum(
        statistics.fmean(math.log(a / b) for a, b in pairs) > edge for pairs in zip(*times.values(), strict=True)
    )
