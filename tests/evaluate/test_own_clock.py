"""What the judge makes of a device's times: a forged median is caught, a busy host accuses nobody."""

import random
from types import SimpleNamespace

import pytest

from atrex.evaluate.own_clock import FEWEST_ROUNDS, ROUNDS, OwnClock
from atrex.evaluate.performance import Baseline, Samples

ROUND_TRIP = 200.0


def clock(us, outside, slopes=(), uneven=0.0, mailed=True, varies=0.0):
    """An own clock that has seen these times, and whose next batches have these slopes (the last one again and again).

    `outside`: microseconds that each call took longer from outside than it says, beyond round trip and delay.
    """
    made = object.__new__(OwnClock)
    added = ROUND_TRIP + 50.0
    made._samples = Samples(us=us, outside_us=[t + added + extra for t, extra in zip(us, outside, strict=True)])
    made._samples.delay_us = Baseline.DELAY_US + 50.0
    made._t = SimpleNamespace(baseline=Baseline(0.0, 0.0, ROUND_TRIP, ROUND_TRIP + varies, ROUND_TRIP))
    made._events, made._mailed, made._uneven_us = True, mailed, 0.0
    left = list(slopes)

    def slope(claim, rounds=5, patience=1, near=None, by=0.0):
        made._uneven_us = uneven
        return left.pop(0) if len(left) > 1 else left[0]

    made._slope = slope
    return made


def outcome(made):
    seen, wrong = made._long(sorted(made._samples.us)[len(made._samples.us) // 2])
    return seen, wrong.category if wrong else None


def test_other_load_that_stretches_most_calls_from_outside_is_no_contradiction():
    stretched = [20_000.0 if i % 4 else 0.0 for i in range(31)]
    assert outcome(clock([5000.0] * 31, stretched, [5000.0])) == (5000.0, None)


@pytest.mark.parametrize("forged", [16, 31])
def test_a_median_that_enough_calls_forge_is_caught_by_both_clocks(forged):
    us = [2500.0] * forged + [5000.0] * (31 - forged)
    extra = [2500.0] * forged + [0.0] * (31 - forged)
    assert outcome(clock(us, extra, [5000.0]))[1] == "integrity"


def test_where_every_call_is_stretched_batches_that_agree_decide():
    assert outcome(clock([5000.0] * 31, [3000.0] * 31, [5100.0])) == (5100.0, None)


def test_two_clocks_that_contradict_each_other_accuse_nobody():
    assert outcome(clock([5000.0] * 31, [3000.0] * 31, [6000.0]))[1] == "unstable"


@pytest.mark.parametrize(("uneven", "category"), [(40.0, "integrity"), (900.0, "unstable")])
def test_batches_that_contradict_are_unstable_where_the_judges_own_vary_as_much(uneven, category):
    assert outcome(clock([5000.0] * 31, [4000.0] * 31, [9000.0], uneven))[1] == category


@pytest.mark.parametrize(
    ("uneven", "category"),
    [(1.0, "integrity"), (3.0, "integrity"), (300.0, "unstable")],  # 3 us are over the slack, and explain no 380 us
)
def test_the_same_holds_of_a_short_call(uneven, category):
    made = clock([20.0] * 31, [0.0] * 31, [400.0], uneven)
    assert made._short(20.0)[1].category == category


@pytest.mark.parametrize(
    ("outside", "category"),
    [
        ([0.0] * 25 + [6000.0] * 6, "unstable"),  # some calls were held up as the batches were
        ([980.0] * 31, "integrity"),  # every call takes longer than it says
        ([0.0] * 31, "integrity"),  # no call was held up, batches are longer
        ([0.0] * 25 + [900.0] * 6, "integrity"),  # by far less than the batches
    ],
)
def test_what_held_up_single_calls_too_explains_longer_batches(outside, category):
    made = clock([20.0] * 31, outside, [1000.0])
    assert made._short(20.0)[1].category == category


def test_outputs_that_have_no_room_for_batches_of_their_own_leave_the_outside_clock_alone():
    """Batches cannot absolve there: what their calls left out would not be seen."""
    assert outcome(clock([5000.0] * 31, [3000.0] * 31, [5000.0], mailed=False))[1] == "integrity"
    assert outcome(clock([5000.0] * 31, [3000.0] * 31, [5000.0], uneven=900.0, mailed=False))[1] == "unstable"


@pytest.mark.parametrize(("varies", "category"), [(0.0, "unstable"), (150.0, None)])
def test_a_way_to_the_worker_that_has_become_shorter_is_no_shorter_call(varies, category):
    made = clock([1200.0] * 31, [-200.0] * 31, [1200.0], mailed=False, varies=varies)
    assert outcome(made)[1] == category


@pytest.mark.parametrize(
    ("near", "by", "rounds"), [(None, 0.0, ROUNDS), (20.0, 1.0, FEWEST_ROUNDS), (26.0, 1.0, ROUNDS)]
)
def test_batches_that_agree_are_not_repeated_and_those_that_do_not_are(near, by, rounds):
    made = clock([20.0] * 31, [0.0] * 31)
    del made._slope
    made._samples.host_us, made._samples.launch_us = 30.0, [40.0]
    made._t.protocol = SimpleNamespace(bounded=lambda us: us)
    made._mailed, made._rng, made._usable = False, random.Random(1), 44
    done = []

    def batch(count, delay, verified):
        done.append(count)
        return 500.0 + count * (delay + 20.0)

    made._batch, made._null_batch = batch, lambda count, delay: 500.0 + count * delay
    made._spot_check = lambda: None
    assert made._slope(20.0, near=near, by=by) == pytest.approx(20.0)
    assert len(done) == 2 * rounds
