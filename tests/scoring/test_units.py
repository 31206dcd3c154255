import math

import pytest
from synthetic import error, failed, unit

from atrex.scoring.records import RooflineScore
from atrex.scoring.units import attainable_s, by_operator, headline, s_j, unit_score


def test_s_j_is_roofline_over_candidate_time():
    assert s_j(5.0, 20.0) == 0.25
    assert s_j(5.0, 5.0) == 1.0


def test_s_j_over_one_is_an_error_and_never_clipped():
    with pytest.raises(ValueError, match="over 1"):
        s_j(5.0, 4.999999)


@pytest.mark.parametrize("times", [(0.0, 1.0), (1.0, 0.0), (1.0, math.nan), (math.inf, 1.0), (-1.0, -1.0)])
def test_s_j_rejects_times_that_are_none(times):
    with pytest.raises(ValueError, match="expected a positive time"):
        s_j(*times)


def test_attainable_takes_the_larger_of_roofline_and_floor():
    assert attainable_s(1.0, 4.0, 8.0) == 0.5
    assert attainable_s(6.0, 4.0, 8.0) == 0.75


def test_only_a_passed_unit_has_a_score():
    scored = RooflineScore(roofline_us=1.0, bound="memory", S=0.1)
    assert unit_score(unit(roofline=scored)) == 0.1
    assert unit_score(failed("performance", "over_budget", roofline=scored)) is None
    assert unit_score(error("unstable", roofline=scored)) is None
    assert unit_score(failed("runtime", "numeric_mismatch", roofline=scored)) is None


def test_a_recorded_s_over_one_is_refused():
    record = unit(roofline=RooflineScore(roofline_us=11.0, bound="memory", S=1.1))
    with pytest.raises(ValueError, match="rms_norm 0.*evaluation error"):
        unit_score(record)


def test_headline_leaves_out_held_out_and_added_shapes():
    records = [unit(), unit(shape="h0", held_out=True), unit(shape="i0", origin="inferred")]
    assert headline(records) == records[:1]


def test_a_unit_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="stands twice"):
        by_operator([unit(), unit()])
