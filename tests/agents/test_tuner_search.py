"""The search asks for what was not tried, learns from what it is told, and repeats itself for a seed."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

pytest.importorskip("optuna")

from atrex.agents.tuner.knobs import Knob  # noqa: E402
from atrex.agents.tuner.search import Search, log_ratio, spread  # noqa: E402

KNOBS = (Knob("A", (1, 2, 4, 8), 1), Knob("B", ("x", "y", "z"), "x"), Knob("C", (16, 32, 64, 128, 256), 16))


def loss(chosen):
    """Least, -1.6, at A=4, B=z, C=64."""
    return (
        0.5 * abs(math.log2(chosen["A"]) - 2) + 0.6 * (chosen["B"] != "z") + 0.1 * abs(math.log2(chosen["C"]) - 6) - 1.6
    )


def told_of(chosen):
    return loss(chosen) + 0.3 * abs(chosen["D"] - 3) + 0.3 * abs(chosen["E"] - 2)


def drive(seed, trials, knobs=KNOBS, told=loss):
    search, asked = Search(knobs, seed), []
    for _ in range(trials):
        chosen = search.ask()
        if chosen is None:
            break
        asked.append(chosen)
        search.tell(chosen, told(chosen))
    return asked


def test_it_learns_which_values_are_fast():
    # The first eight questions are drawn at random; if the later ones were too, they would be no faster on average.
    knobs = (*KNOBS, Knob("D", (1, 2, 3, 4), 1), Knob("E", (1, 2, 3, 4), 1))
    early_and_late = (slice(0, 8), slice(20, 40))
    told = [[told_of(chosen) for chosen in drive(seed, 40, knobs, told_of)] for seed in range(6)]
    early, late = (statistics.fmean(itertools.chain(*(each[part] for each in told))) for part in early_and_late)
    assert late < early - 0.4, (early, late)


def test_a_seed_repeats_its_questions_and_another_does_not():
    assert drive(3, 15) == drive(3, 15) != drive(4, 15)


def test_every_combination_is_asked_for_once_and_then_none():
    asked = [tuple(chosen.values()) for chosen in drive(0, 100)]
    every = set(itertools.product(*(knob.options for knob in KNOBS)))
    assert len(asked) == len(set(asked)) == 59 and every - set(asked) == {(1, "x", 16)}


def test_what_gave_no_kernel_is_not_asked_for_again():
    knobs = (Knob("A", (0, 1, 2), 0),)
    asked = drive(0, 10, knobs, lambda chosen: None)
    assert sorted(chosen["A"] for chosen in asked) == [1, 2]


def test_without_knobs_there_is_nothing_to_ask():
    assert Search((), 0).ask() is None


def test_the_ratio_is_of_neighbours_and_survives_a_disturbance():
    drifting = [(t, 0.5 * t) for t in (100.0, 200.0, 400.0, 800.0, 1600.0)]
    assert log_ratio({"0": [*drifting, (100.0, 9000.0)], "1": drifting}) == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(("count", "most", "expected"), [(3, 4, "012"), (9, 3, "048"), (5, 1, "2"), (0, 3, "")])
def test_spread_takes_both_ends(count, most, expected):
    assert "".join(spread([str(i) for i in range(count)], most)) == expected
