"""The promotion rule on times with known truth: noise is not promoted, gains are, slow shapes block."""

from __future__ import annotations

import math
import random

import pytest

from atrex.optimize.promotion import Rule, decide, slower_shapes


class Bench:
    """Stands for a machine: shapes with true times, noise per measurement, now and then a disturbed one."""

    def __init__(self, seed, gain=1.0, noise=0.03, tail=0.05, base=(10.0, 50.0, 200.0), slow=()):
        self.rng, self.noise, self.tail = random.Random(seed), noise, tail
        self.shapes = {str(i): us for i, us in enumerate(base)}
        self.gain, self.slow, self.rounds = gain, dict(slow), 0

    def _once(self, us):
        disturbed = self.rng.uniform(0.1, 0.6) if self.rng.random() < self.tail else 0.0
        return us * math.exp(self.rng.gauss(0, self.noise) + disturbed)

    def measure(self, shapes=None):
        self.rounds += 1
        wanted = self.shapes if shapes is None else shapes
        return {
            s: (self._once(self.shapes[s]), self._once(self.shapes[s] / self.gain * self.slow.get(s, 1.0)))
            for s in wanted
        }


def test_campaigns_without_a_gain_promote_within_their_error_rate():
    promoted = 0
    for campaign in range(60):
        bench = Bench(campaign)
        promoted += any(decide(bench.measure, number).promoted for number in range(1, 16))
    assert promoted <= 60 * 0.05 + 3 * math.sqrt(60 * 0.05 * 0.95)


def test_three_percent_are_found_in_nine_campaigns_of_ten():
    found = sum(decide(Bench(1000 + i, gain=1.03, noise=0.02).measure, 1).promoted for i in range(50))
    assert found >= 45


def test_a_large_gain_takes_few_rounds_and_a_loss_fewer():
    bench = Bench(1, gain=1.5)
    assert decide(bench.measure, 1).why == "faster" and bench.rounds <= 8
    bench = Bench(2, gain=0.8)
    assert decide(bench.measure, 1).why == "futile" and bench.rounds == 4


def test_a_later_candidate_needs_more_rounds():
    assert decide(Bench(3, gain=1.5).measure, 30).rounds > decide(Bench(3, gain=1.5).measure, 1).rounds


def test_a_shape_that_gets_slower_blocks_a_gain_overall():
    decision = decide(Bench(4, gain=1.3, slow={"0": 1.6}).measure, 1)
    assert (decision.promoted, decision.why, decision.slower) == (False, "slower_shape", ("0",))
    assert set(decision.again) == {"0"}


def test_a_shape_disturbed_once_is_measured_again_and_does_not_block():
    bench = Bench(5, gain=1.3, noise=0.005, tail=0.0)
    clean, seen = bench.measure, []

    def measure(shapes=None):
        found = dict(clean(shapes))
        if shapes is None:
            a, b = found["1"]
            found["1"] = (a, b * 1.5)
        seen.append(shapes)
        return found

    decision = decide(measure, 1, Rule(looks=1))
    assert decision.promoted and ["1"] in seen


def test_a_tiny_slowdown_of_a_tiny_shape_does_not_block():
    times = {"0": [(5.0, 5.2 + 0.001 * i) for i in range(8)], "1": [(100.0, 90.0 + i) for i in range(8)]}
    assert slower_shapes(times) == []
    times["0"] = [(5.0, 5.6 + 0.001 * i) for i in range(8)]
    assert slower_shapes(times) == ["0"]


def test_among_many_equal_shapes_none_is_blamed_more_often_than_the_error_rate():
    blamed = 0
    for i in range(100):
        bench = Bench(i, base=tuple([100.0] * 40), noise=0.05)
        rounds = [bench.measure() for _ in range(8)]
        blamed += bool(slower_shapes({s: [r[s] for r in rounds] for s in bench.shapes}))
    assert blamed <= 5 + 3 * math.sqrt(100 * 0.05 * 0.95)


def test_the_error_rate_is_spent_over_the_series():
    bench = Bench(7, gain=0.5)
    shares = [decide(bench.measure, n).error for n in range(1, 50)]
    assert sum(shares) < 0.05 and shares == sorted(shares, reverse=True)


def test_what_measuring_raises_is_passed_on():
    def measure(shapes=None):
        raise LookupError("a unit failed")

    with pytest.raises(LookupError):
        decide(measure, 1)
