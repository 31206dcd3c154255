import pytest
from synthetic import error, failed, unit

from atrex.scoring.operators import operator_scores

MISMATCH = ("runtime", "numeric_mismatch")


def score(records, shapes):
    return operator_scores(records, {"rms_norm": 1.0}, {"rms_norm": shapes})["rms_norm"]


def test_s_i_is_the_plain_median_over_correct_shapes():
    records = [unit(shape="0", s=0.1), unit(shape="1", s=0.2), unit(shape="2", s=0.9), failed(*MISMATCH, shape="3")]
    assert score(records, 4).s == 0.2


def test_an_even_count_takes_the_mean_of_the_middle_two():
    assert score([unit(shape="0", s=0.25), unit(shape="1", s=0.75)], 2).s == 0.5


def test_s_i_is_zero_without_a_correct_shape():
    result = score([failed(*MISMATCH)], 1)
    assert result.s == 0.0 and result.s_defined is None


def test_an_over_budget_unit_is_correct_and_has_no_s_j():
    result = score([unit(shape="0", s=0.4), failed("performance", "over_budget", shape="1")], 2)
    assert (result.correct, result.scored, result.s) == (2, 1, 0.4)


def test_s_i_is_zero_when_every_correct_shape_lacks_an_s_j():
    result = score([failed("performance", "over_budget"), error("unstable", shape="1")], 2)
    assert (result.correct, result.scored, result.s) == (2, 0, 0.0)


def test_an_error_keeps_the_denominator_and_stays_correct():
    result = score([unit(shape="0", s=0.4), error("beyond_roofline", shape="1")], 2)
    assert (result.shapes, result.correct, result.s, result.strict) == (2, 2, 0.4, 0.2)


def test_strict_counts_failed_and_absent_shapes_as_zero():
    records = [unit(shape="0", s=0.3), unit(shape="1", s=0.5), failed(*MISMATCH, shape="2")]
    assert score(records, 3).strict == 0.3
    assert score(records, 4).strict == 0.15
    assert score(records, 5).strict == 0.0


def test_failing_a_slow_shape_raises_s_i_but_not_the_strict_one():
    both = score([unit(shape="0", s=0.1), unit(shape="1", s=0.9)], 2)
    dropped = score([failed(*MISMATCH, shape="0"), unit(shape="1", s=0.9)], 2)
    assert dropped.s > both.s
    assert dropped.strict < both.strict


def test_a_shape_that_does_not_compile_is_incorrect():
    result = score([unit(shape="0"), failed("compile", "exception", shape="1")], 2)
    assert (result.compiled, result.correct) == (1, 1)


def test_attainable_is_a_median_of_its_own():
    records = [unit(shape="0", s=0.1, attainable=0.8), unit(shape="1", s=0.2, attainable=0.4)]
    assert score(records, 2).attainable == pytest.approx(0.6)


def test_a_ceiling_that_some_scored_shape_lacks_is_not_measured():
    records = [unit(shape="0", calibrated=0.6), unit(shape="1", calibrated=None)]
    assert score(records, 2).calibrated is None


def test_adoption_is_the_mean_share_over_running_shapes_also_wrong_ones():
    records = [unit(shape="0", share=1.0), failed(*MISMATCH, shape="1", adoption={"share": 0.5}),
               failed("compile", "exception", shape="2")]
    result = score(records, 3)
    assert (result.adoption, result.running) == (0.75, 2)


def test_dominant_is_over_half_not_half():
    assert not score([unit(share=0.5)], 1).dominant
    assert score([unit(share=0.51)], 1).dominant


def test_fully_correct_needs_every_published_shape():
    assert score([unit()], 1).fully_correct
    assert not score([unit()], 2).fully_correct


def test_a_baseline_ratio_is_the_median_over_correct_shapes():
    records = [unit(shape="0", baselines={"torch.compile": 10.0}), unit(shape="1", baselines={"torch.compile": 40.0}),
               unit(shape="2", baselines={"torch.compile": 30.0}),
               unit(shape="3", correctness={"passed": False}, baselines={"torch.compile": 900.0})]
    assert score(records, 4).ratios == {"torch.compile": 3.0}


def test_a_unit_in_error_enters_no_baseline_ratio():
    assert score([error("beyond_roofline", baselines={"torch.compile": 900.0})], 1).ratios == {}


def test_held_out_shapes_are_counted_apart():
    records = [unit(s=0.2), unit(shape="h0", s=0.9, held_out=True), failed(*MISMATCH, shape="h1", held_out=True)]
    result = score(records, 1)
    assert (result.s, result.correct, result.run, result.generalizes, result.held_out) == (0.2, 1, 1, 1, 2)


def test_added_shapes_enter_a_second_s_i_only():
    result = score([unit(s=0.2), unit(shape="i0", s=0.4, origin="inferred")], 1)
    assert (result.s, result.all_origins) == (0.2, pytest.approx(0.3))
    assert score([unit(s=0.2)], 1).all_origins is None


def test_a_folder_with_more_shapes_than_the_suite_is_counted_over_its_own():
    assert score([unit(shape="0"), failed(*MISMATCH, shape="1")], 1).shapes == 2


def test_operators_are_ordered_by_falling_weight():
    records = [unit("a"), unit("b"), unit("c")]
    assert list(operator_scores(records, {"b": 0.7, "c": 0.3}, {"a": 1, "b": 1, "c": 1})) == ["b", "c", "a"]
