"""The published ceiling and the published correctness rule, beside ours, from records written by hand."""

import pytest
from synthetic import failed, unit

from atrex.scoring.aggregate import summarize
from atrex.scoring.operators import operator_scores
from atrex.scoring.records import Correctness, RooflineScore
from atrex.scoring.units import published_correct

FIVE = {f"seed{i}": True for i in range(5)}
WEIGHTS, SHAPES = {"rms_norm": 0.75, "l2_norm": 0.25}, {"rms_norm": 2, "l2_norm": 1}


def judged(shape="0", s=0.5, published_s=None, check=True, cases=FIVE, operator="rms_norm", **fields):
    """A unit of 10 us with S = s under our ceiling and published_s under equation 1."""
    roofline = RooflineScore(roofline_us=10 * s, bound="memory", S=s, published_S=published_s)
    correctness = Correctness(passed=True, cases=dict(cases), published_check=check)
    return unit(operator, shape, s, roofline=roofline, correctness=correctness, **fields)


def summary(*records):
    return summarize(records, WEIGHTS, SHAPES)


class TestCeiling:
    def test_s_agg_under_the_published_work_stands_beside_ours(self):
        found = summary(
            judged("0", 0.2, 0.3), judged("1", 0.4, 0.5), judged(operator="l2_norm", s=0.8, published_s=1.6)
        )
        assert found.s_agg == pytest.approx(0.75 * 0.3 + 0.25 * 0.8)
        assert found.s_agg_published_bound == pytest.approx(0.75 * 0.4 + 0.25 * 1.6)  # no lower bound, so over 1 counts

    def test_shapes_of_our_own_do_not_enter_it(self):
        found = summary(judged("0", 0.2, 0.3), judged("7", 0.9, None, origin="atrex"))
        assert found.s_agg_published_bound == pytest.approx(0.75 * 0.3)

    def test_where_a_published_shape_lacks_it_there_is_none(self):
        assert summary(judged("0", 0.2, 0.3), judged("1", 0.4, None)).s_agg_published_bound is None


class TestRule:
    def test_five_seeds_decide(self):
        assert published_correct(judged()) is True
        assert published_correct(judged(check=False, cases={"seed0": True})) is False

    def test_fewer_seeds_leave_it_open(self):
        assert published_correct(judged(cases={"seed0": True, "large_rows": True})) is None

    def test_what_never_gave_outputs_is_wrong_by_any_rule(self):
        assert published_correct(failed("compile", "exception")) is False
        assert published_correct(failed("runtime", "timeout")) is False

    def test_an_output_of_another_form_is_left_open(self):
        assert published_correct(failed("runtime", "interface")) is None

    def test_a_unit_that_only_the_published_rule_passes_is_counted_by_it_alone(self):
        wrong = failed(
            "runtime", "numeric_mismatch", shape="1",
            correctness=Correctness(passed=False, cases={**FIVE, "tiny": False}, published_check=True),
        )  # fmt: skip
        score = operator_scores([judged("0"), wrong], WEIGHTS, SHAPES)["rms_norm"]
        assert (score.correct, score.published_correct, score.published_unknown) == (1, 2, 0)

    def test_the_rate_keeps_the_denominators_of_ours(self):
        found = summary(judged("0"), judged("1", cases={"seed0": True}))
        assert found.correctness == pytest.approx(0.5)
        assert (found.correctness_published, found.published_unknown) == (pytest.approx(0.25), 1)
