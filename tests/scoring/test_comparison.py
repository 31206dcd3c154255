"""Intervals and decisions about two kernels, from times made up with known truth."""

import math
import random

import pytest

from atrex.scoring.comparison import compare_times, rounds_needed, spent


def paired(rng, ratio, rounds, shapes=3, noise=0.02, drift=0.05):
    """Times with a common drift per round and noise per measurement; A takes `ratio` times as long as B."""
    times = {str(s): [] for s in range(shapes)}
    for _ in range(rounds):
        common = math.exp(rng.gauss(0, drift))
        for s in times:
            base = 10 * (1 + int(s)) * common
            times[s].append((base * ratio * math.exp(rng.gauss(0, noise)), base * math.exp(rng.gauss(0, noise))))
    return times


def test_a_kernel_twice_as_fast_is_found_with_its_ratio_per_shape_and_overall():
    found = compare_times(paired(random.Random(1), 2.0, rounds=6))
    assert found.overall.ratio == pytest.approx(2.0, rel=0.02)
    assert 1.9 < found.overall.low < found.overall.high < 2.1
    assert [s.interval.ratio for s in found.shapes] == pytest.approx([2.0] * 3, rel=0.04)
    assert found.p_faster == pytest.approx(2**-6) and found.p_slower == 1.0


def test_swapping_the_kernels_inverts_the_ratio():
    times = paired(random.Random(2), 1.3, rounds=6)
    there = compare_times(times)
    back = compare_times({s: [(b, a) for a, b in pairs] for s, pairs in times.items()})
    assert back.overall.ratio == pytest.approx(1 / there.overall.ratio)
    assert back.overall.low == pytest.approx(1 / there.overall.high)
    assert (back.p_faster, back.p_slower) == pytest.approx((there.p_slower, there.p_faster))


def test_equal_kernels_are_called_faster_no_more_often_than_the_error_rate():
    rng = random.Random(3)
    called = sum(compare_times(paired(rng, 1.0, rounds=7)).p_faster <= 0.05 for _ in range(300))
    assert called <= 0.05 * 300 + 3 * math.sqrt(300 * 0.05 * 0.95)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = random.Random(4)
    covered = 0
    for _ in range(300):
        found = compare_times(paired(rng, 1.1, rounds=5)).overall
        covered += found.low <= 1.1 <= found.high
    assert 0.91 * 300 <= covered <= 0.99 * 300


def test_a_margin_asks_for_more_than_faster():
    times = paired(random.Random(5), 1.01, rounds=8, noise=0.001)
    assert compare_times(times).p_faster < 0.01
    assert compare_times(times, margin=0.02).p_faster > 0.5


def test_the_error_rates_of_an_endless_series_sum_to_the_whole():
    assert sum(spent(0.05, n) for n in range(1, 100_000)) == pytest.approx(0.05, rel=1e-3)
    assert spent(0.05, 1) > spent(0.05, 2) > 0


def test_rounds_needed_is_when_the_test_can_reach_the_error_rate():
    for alpha in (0.05, 0.01, 0.001):
        n = rounds_needed(alpha)
        assert 2.0**-n <= alpha < 2.0 ** -(n - 1)


@pytest.mark.parametrize(
    "times", [{"0": [(1.0, 1.0)] * 2}, {"0": [(1.0, 1.0)] * 3, "1": [(1.0, 1.0)] * 4}, {"0": [(0.0, 1.0)] * 3}, {}]
)
def test_too_few_unequal_or_impossible_times_are_refused(times):
    with pytest.raises(ValueError):
        compare_times(times)


def test_interval_and_test_agree_whatever_the_times():
    rng = random.Random(8)
    for case in range(200):
        rounds, margin = rng.randint(6, 20), rng.choice((0.0, 0.02))
        found = compare_times(paired(rng, rng.uniform(0.97, 1.05), rounds, shapes=2), 0.95, margin)
        assert found.attained >= 0.95
        assert (found.overall.low > 1 + margin) == (found.p_faster <= 0.025), case
        assert (found.overall.high < 1 / (1 + margin)) == (found.p_slower <= 0.025), case


def test_one_disturbed_round_leaves_the_interval_of_a_clear_gain_above_one():
    times = [(1.10 + 0.001 * i, 1.0) for i in range(11)] + [(1.0, 5.0)]
    found = compare_times({"0": times})
    assert found.p_faster <= 0.025 and found.overall.low > 1 and found.overall.ratio == pytest.approx(1.105, rel=0.01)


def test_too_few_rounds_for_a_confidence_say_which_one_they_reach():
    found = compare_times({"0": [(1.0, 1.0), (1.1, 1.0), (1.2, 1.0)]})
    assert found.attained == pytest.approx(0.75) and (found.overall.low, found.overall.high) == pytest.approx((1, 1.2))


def test_the_distribution_of_the_test_is_that_of_scipy():
    from scipy.stats import wilcoxon

    for wins in range(1, 9):
        values = [(i if i <= wins else -i) for i in range(1, 9)]
        found = compare_times({"0": [(math.exp(v / 10), 1.0) for v in values]}, confidence=0.9)
        exact = wilcoxon(values, alternative="greater", method="exact").pvalue
        assert (found.overall.low > 1) == (exact <= 0.05)


def test_equal_kernels_are_said_to_show_no_difference_in_one_sentence():
    from atrex.cli.compare import _sentence
    from atrex.evaluate.versus import Result

    found = compare_times({"0": [(10.0, 10.1), (10.1, 10.0), (9.9, 10.0), (10.0, 9.9), (10.2, 10.1), (10.1, 10.2)]})
    assert _sentence(Result("rms_norm", found, {}, None, {"margin": 0.0})).startswith("no difference is shown")
