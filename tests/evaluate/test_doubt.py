"""A measurement in doubt is taken once more in a fresh worker before anything is made of it."""

import pytest

from atrex.evaluate.failures import Doubt, UnitError, UnitFailure
from atrex.evaluate.own_clock import OwnClock
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone


@pytest.fixture
def doubts(monkeypatch):
    """doubts(category, ...): the n-th measurement of a unit is in doubt for the n-th of these; None is no doubt."""

    def planned(*categories):
        real, left = OwnClock.agree, list(categories)

        def agree(self):
            category = left.pop(0)
            if category:
                raise Doubt(category, f"the clocks differ ({len(left)} to go)")
            return real(self)

        monkeypatch.setattr(OwnClock, "agree", agree)
        return left

    return planned


def test_one_doubt_is_followed_by_a_second_measurement_that_counts(judge, doubts):
    doubts("integrity", None)
    record = judge(HONEST)
    assert record.verdict.status == "passed" and record.performance.median_us > 0
    assert record.performance.remeasured == "the clocks differ (1 to go)"


def test_the_same_doubt_twice_is_integrity_and_says_both(judge, doubts):
    doubts("integrity", "integrity")
    record = judge(HONEST)
    assert (record.verdict.status, record.verdict.category) == ("failed", "integrity")
    assert "(0 to go)" in record.verdict.reason and "(1 to go)" in record.verdict.reason
    assert record.performance is None


def test_no_doubt_is_measured_once(judge, doubts):
    left = doubts(None, None)
    assert judge(HONEST).performance.remeasured is None
    assert left == [None]


@pytest.mark.parametrize(
    ("first", "second", "kind", "category"),
    [
        ("integrity", "integrity", UnitFailure, "integrity"),
        ("beyond_roofline", "beyond_roofline", UnitError, "beyond_roofline"),
        ("unstable", "unstable", UnitError, "unstable"),
        ("integrity", "beyond_roofline", UnitError, "unstable"),
        ("beyond_roofline", "integrity", UnitError, "unstable"),
    ],
)
def test_what_two_doubts_become(first, second, kind, category):
    end = Doubt(second, "now").outcome(Doubt(first, "then"))
    assert isinstance(end, kind) and end.category == category
    assert "now" in end.reason and "then" in end.reason
