"""What a restart does not see: never the baseline or what was accepted, as much as the policy says, by its weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from atrex.optimize.dropout import POLICIES, draw


@dataclass(frozen=True)
class Record:
    number: int
    category: str = "tiling"
    accepted: bool = False
    failed: bool = False


MEMORY = [Record(0, "baseline", accepted=True)] + [
    Record(i, ("tiling", "layout")[i > 8], accepted=i == 3, failed=i in (4, 5)) for i in range(1, 11)
]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_baseline_and_accepted_records_stay(name):
    for seed in range(50):
        assert not set(draw(POLICIES[name], MEMORY, str(seed))) & {0, 3}


def test_half_of_the_rest_is_hidden_and_none_by_none():
    assert len(draw(POLICIES["uniform"], MEMORY, "a")) == round(0.5 * 9)
    assert draw(POLICIES["none"], MEMORY, "a") == []


def test_a_seed_draws_the_same_and_another_something_else():
    draws = [tuple(draw(POLICIES["uniform"], MEMORY, seed)) for seed in ("a", "a", "b", "c", "d")]
    assert draws[0] == draws[1] and len(set(draws)) > 1


def _often(name):
    count = Counter(n for seed in range(400) for n in draw(POLICIES[name], MEMORY, str(seed)))
    return {n: count[n] for n in range(1, 11) if n != 3}


def test_age_hides_old_records_more_often():
    often = _often("age")
    assert often[1] > 1.5 * often[10]


def test_failure_hides_failed_records_more_often():
    often = _often("failure")
    assert min(often[4], often[5]) > 1.3 * max(n for i, n in often.items() if i not in (4, 5))


def test_category_hides_the_direction_that_was_tried_most():
    often = _often("category")
    assert often[1] > 1.5 * often[9]


def test_a_memory_of_a_baseline_hides_nothing():
    assert draw(POLICIES["uniform"], MEMORY[:1], "a") == []
