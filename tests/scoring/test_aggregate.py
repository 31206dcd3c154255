import random

import pytest
from synthetic import error, failed, random_suite, unit

from atrex.scoring.aggregate import summarize
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.weights import normalize

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
SHAPES = {"a": 2, "b": 1, "c": 4}
MISMATCH = ("runtime", "numeric_mismatch")


def test_s_agg_is_the_weighted_sum_with_absent_operators_zero():
    summary = summarize([unit("a", "0", 0.4), unit("b", "0", 0.2)], WEIGHTS, SHAPES)
    assert summary.s_agg == pytest.approx(0.5 * 0.4 + 0.3 * 0.2)


def test_coverage_is_the_weight_of_what_was_run_and_s_agg_inside_is_over_it():
    summary = summarize([unit("a", "0", 0.4), failed(*MISMATCH, "b", "0")], WEIGHTS, SHAPES)
    assert summary.coverage == pytest.approx(0.8)
    assert summary.s_agg_inside == pytest.approx(0.5 * 0.4 / 0.8)


def test_strict_s_agg_takes_strict_medians():
    summary = summarize([unit("a", "0", 0.4), unit("b", "0", 0.2)], WEIGHTS, SHAPES)
    assert summary.s_agg_strict == pytest.approx(0.5 * 0.2 + 0.3 * 0.2)


def test_attainable_s_agg_is_measured_only_if_every_scored_operator_has_it():
    measured = [unit("a", "0", 0.4, attainable=0.8), failed(*MISMATCH, "b", "0")]
    assert summarize(measured, WEIGHTS, SHAPES).s_agg_attainable == pytest.approx(0.4)
    assert summarize([*measured, unit("c", "0", 0.4)], WEIGHTS, SHAPES).s_agg_attainable is None


def test_calibrated_s_agg_stands_beside_the_cited_one():
    summary = summarize([unit("a", "0", 0.4, calibrated=0.6)], WEIGHTS, SHAPES)
    assert (summary.s_agg, summary.s_agg_calibrated) == (pytest.approx(0.2), pytest.approx(0.3))


def test_rates_are_means_over_all_operators_and_inside_over_what_was_run():
    records = [unit("a", "0"), failed("compile", "exception", "a", "1"), unit("c", "0"), failed(*MISMATCH, "c", "1")]
    summary = summarize(records, WEIGHTS, SHAPES)
    assert summary.compile_rate == pytest.approx((1 / 2 + 0 + 2 / 4) / 3)
    assert summary.compile_rate_inside == pytest.approx((1 / 2 + 2 / 2) / 2)
    assert summary.correctness == pytest.approx((1 / 2 + 0 + 1 / 4) / 3)
    assert summary.correctness_inside == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_a_planned_unit_without_a_record_counts_zero_inside_and_is_said():
    summary = summarize([unit("a", "0")], WEIGHTS, SHAPES, planned=[("a", "0"), ("a", "1"), ("b", "0")])
    assert (summary.absent, summary.correctness_inside) == (2, pytest.approx((1 / 2 + 0) / 2))
    assert summary.coverage == pytest.approx(0.8)


def test_adoption_is_a_mean_over_the_operators_where_it_is_defined():
    summary = summarize([unit("a", "0", share=0.9), unit("b", "0", share=0.3), unit("c", "0")], WEIGHTS, SHAPES)
    assert (summary.adoption, summary.adoption_operators) == (pytest.approx(0.6), 2)


def test_the_gap_between_fully_correct_and_dominant_is_signed():
    records = [unit("a", "0", share=0.9), failed(*MISMATCH, "a", "1"), unit("b", "0", share=0.9)]
    summary = summarize(records, WEIGHTS, SHAPES)
    assert (summary.fully_correct, summary.dominant, summary.gap) == (1, 2, -1)


def test_unweighted_s_is_the_median_where_defined():
    summary = summarize([unit("a", "0", 0.4), unit("b", "0", 0.1), failed(*MISMATCH, "c", "0")], WEIGHTS, SHAPES)
    assert (summary.s_median, summary.s_median_operators) == (0.25, 2)


def test_baseline_ratios_are_a_median_of_medians_and_never_weighted():
    records = [unit("a", "0", baselines={"eager": 10.0}), unit("b", "0", baselines={"eager": 20.0}),
               unit("c", "0", baselines={"eager": 60.0})]
    for weights in (WEIGHTS, {"a": 1.0}):
        ratio = summarize(records, weights, SHAPES).baselines["eager"]
        assert (ratio.ratio, ratio.operators) == (2.0, 3)


def test_held_out_units_change_no_figure_but_their_own():
    scored = [unit("a", "0", 0.4, share=0.9, attainable=0.5), failed(*MISMATCH, "b", "0")]
    held_out = [unit("a", "h0", 0.9, held_out=True), failed("compile", "exception", "c", "h0", held_out=True)]
    plain, beside = (vars(summarize(r, WEIGHTS, SHAPES)).copy() for r in (scored, scored + held_out))
    assert (beside.pop("generalizes"), beside.pop("held_out")) == (1, 2)
    assert (plain.pop("generalizes"), plain.pop("held_out")) == (0, 0)
    assert beside == plain


def test_errors_are_counted_apart_from_failures():
    records = [error("unstable", "a", "0"), error("folder", "a", "1"), failed(*MISMATCH, "b", "0")]
    summary = summarize(records, WEIGHTS, SHAPES)
    assert (summary.errors, summary.failed) == ({"folder": 1, "unstable": 1}, 1)


def test_an_operator_outside_the_suite_enters_no_figure_and_is_named():
    summary = summarize([unit("mine", "0", 0.9, share=0.9), unit("a", "0", 0.4)], WEIGHTS, SHAPES)
    assert summary.outside == ["mine"]
    assert (summary.s_median, summary.adoption, summary.operators_run) == (0.4, None, 1)


def test_nothing_run_is_zero_over_the_suite_and_undefined_inside():
    summary = summarize([], WEIGHTS, SHAPES)
    assert (summary.s_agg, summary.compile_rate, summary.coverage) == (0.0, 0.0, 0.0)
    assert (summary.s_agg_inside, summary.adoption, summary.s_median, summary.s_agg_attainable) == (None,) * 4


@pytest.mark.parametrize("weights", [{"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": 0.5, "x": 0.5}, {"a": float("nan")}])
def test_weights_that_are_no_distribution_over_the_suite_are_refused(weights):
    with pytest.raises(ValueError, match="weights:"):
        summarize([], weights, SHAPES)


def test_s_agg_never_falls_when_an_s_j_rises():
    draw = random.Random(7)
    weights = normalize({name: draw.random() for name in PUBLISHED_SHAPES})
    for trial in range(40):
        records = random_suite(trial)
        before = summarize(records, weights, PUBLISHED_SHAPES)
        chosen = draw.choice([i for i, r in enumerate(records) if r.roofline])
        record = records[chosen]
        raised = record.roofline.S + draw.random() * (1 - record.roofline.S)
        records[chosen] = unit(record.operator, record.shape, raised)
        after = summarize(records, weights, PUBLISHED_SHAPES)
        assert after.s_agg >= before.s_agg
        assert after.s_agg_strict >= before.s_agg_strict


def test_a_perfect_suite_scores_one():
    records = [unit(name, str(i), 1.0) for name, n in PUBLISHED_SHAPES.items() for i in range(n)]
    summary = summarize(records, normalize(dict.fromkeys(PUBLISHED_SHAPES, 1.0)), PUBLISHED_SHAPES)
    assert (summary.s_agg, summary.s_agg_strict, summary.coverage) == tuple(pytest.approx(1.0) for _ in range(3))
    assert (summary.shapes_run, summary.fully_correct, summary.correctness) == (440, 30, 1.0)
