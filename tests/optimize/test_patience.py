"""When a contest gives up, and that giving up never promotes."""

from __future__ import annotations

import math
import random

import pytest

from atrex.optimize.patience import Bounds, GaveUp, Patience, spread_of, wait_calm
from atrex.optimize.promotion import Rule, decide


def rounds(*levels):
    """Times of one shape at these multiples."""
    return {"0": [(10.0 * level, 9.0 * level) for level in levels]}


def noisy(seed, gain, spread):
    """Measures with rounds that vary by a lognormal factor, both kernels of a round alike but for 10 %."""
    rng = random.Random(seed)

    def measure(shapes=None):
        level = 100 * math.exp(rng.gauss(0, spread))
        return {"0": (level * math.exp(rng.gauss(0, 0.1)), level / gain * math.exp(rng.gauss(0, 0.1)))}

    return measure


def test_one_disturbed_round_is_no_spread_and_two_are():
    assert spread_of(rounds(1, 1, 1, 50)) == pytest.approx(1)
    assert spread_of(rounds(1, 1, 50, 50)) == pytest.approx(50)


def test_rounds_that_vary_tenfold_end_undecided_with_the_reason():
    found = decide(noisy(1, 1.0, 4.0), 1)
    assert (found.promoted, found.why) == (False, "undecided")
    assert "-fold from round to round" in found.reason and found.rounds < 10


def test_a_limit_of_rounds_ends_before_a_look_that_lies_beyond_it():
    found = decide(noisy(2, 1.02, 0.0), 1, Rule(), Bounds(rounds=20))
    assert found.why == "undecided" and found.rounds == 14 and "the limit is 20" in found.reason


def test_a_limit_of_seconds_ends_as_soon_as_the_next_look_cannot_come_in_time():
    now = 0.0

    def clock():
        return now

    patience, done = Patience(Bounds(seconds=60), clock), 0
    with pytest.raises(GaveUp, match="the limit is 60 s"):
        for done in range(7):
            patience.before(7 - done, 7)
            now += 10.0
            patience.after(rounds(*[1] * (done + 1)))
    assert done == 2  # 20 s are gone, five rounds of 10 s would end at 70 s


def test_bounds_promote_only_what_would_be_promoted_without_them():
    bounds = Bounds(rounds=14, spread=3.0)
    free = [decide(noisy(seed, 1.05, 0.3), 1) for seed in range(60)]
    held = [decide(noisy(seed, 1.05, 0.3), 1, Rule(), bounds) for seed in range(60)]
    assert 0 < sum(d.promoted for d in held) < sum(d.promoted for d in free)
    assert all(a.promoted for a, b in zip(free, held, strict=True) if b.promoted)


def test_an_overall_interval_lies_above_one_where_the_candidate_is_promoted_and_only_there():
    for seed in range(60):
        found = decide(noisy(seed, 1.05, 0.2), 1, Rule(), Bounds(rounds=28))
        if found.rounds >= 7:  # fewer reach the level of no look
            assert (found.comparison.overall.low > 1) == found.promoted, seed


def test_a_round_waits_for_cores_that_others_have_and_gives_up():
    busy = iter([1e3, 1e3, 0.0])
    wait_calm(5.0, lambda: next(busy))
    with pytest.raises(GaveUp, match="other work has the"):
        wait_calm(0.0, lambda: 1e3)
