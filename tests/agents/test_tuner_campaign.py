"""The tuner's steps in a campaign: what it proposes follows from what the memory shows, and from nothing else."""

from __future__ import annotations

from atrex.agents.tuner.campaign import PATIENCE, category, expected, moved, moves, stuck
from atrex.agents.tuner.knobs import find
from atrex.agents.tuner.templates import path
from atrex.optimize.classify import classify

KNOBS = find("from typing import Literal\nA: Literal[1, 2, 4] = 1\nB: Literal[8, 16] = 8\n")


def record(change, ratio=1.0, outcome="no_gain", session=0):
    return {"change": change, "measured_ratio": ratio, "outcome": outcome, "session": session}


def test_a_value_that_the_memory_shows_is_not_proposed_and_one_that_it_hides_is():
    shown = [record("set A from 1 to 2")]
    assert ("A", 2) not in {(m.knob, m.new) for m in moves(KNOBS, shown, 0)}
    assert {(m.knob, m.new) for m in moves(KNOBS, [], 0)} == {("A", 2), ("A", 4), ("B", 16)}


def test_what_was_left_undecided_is_no_evidence_and_is_tried_once_more_after_the_rest():
    noise = record("set A from 1 to 2", 0.5, "undecided")
    assert expected([noise], "A") == expected([], "A")
    assert ((last := moves(KNOBS, [noise], 0)[-1]).knob, last.new) == ("A", 2)
    assert ("A", 2) not in {(m.knob, m.new) for m in moves(KNOBS, [noise] * 2, 0)}
    assert not stuck([record(f"set A from 1 to {i}", outcome="undecided") for i in range(9)], 0)


def test_a_knob_that_brought_something_comes_first_and_one_that_cost_comes_last():
    assert moves(KNOBS, [record("set A from 1 to 2", 1.3)], 0)[0].knob == "A"
    assert moves(KNOBS, [record("set A from 1 to 2", 0.8)], 0)[0].knob == "B"
    assert expected([record("set A from 1 to 2", 1.3)], "A") > expected([], "A") > 0


def test_the_text_of_a_plan_says_what_the_edit_sets():
    move = moves(KNOBS, [], 0)[0]
    assert moved(move.text) == (move.knob, move.new)
    assert moved("wider loads of both operands") is None


def test_a_session_without_a_promotion_is_stuck_and_the_next_one_is_not():
    memory = [record(f"set A from 1 to {i}") for i in range(PATIENCE)]
    assert stuck(memory, 0) and not stuck(memory, 1)
    assert not stuck([*memory[1:], record("set B from 8 to 16", 1.2, "promoted")], 0)


def test_a_knob_has_the_category_that_the_campaign_reads_off_its_edit():
    from atrex.agents.tuner.knobs import render

    source = path("cpp", "rms_norm").read_text()
    for knob in find(source):
        other = next(value for value in knob.options if value != knob.value)
        assert classify(source, render(source, {knob.name: other})).category in (None, category(knob.name)), knob.name


def test_a_value_that_was_not_selected_may_be_proposed_again_and_says_nothing_of_being_stuck():
    memory = [record("set A from 1 to 2", 1.1, "not_selected") for _ in range(PATIENCE)]
    assert ("A", 2) in {(m.knob, m.new) for m in moves(KNOBS, memory, 0)} and not stuck(memory, 0)


def test_what_another_attempt_plans_is_not_planned_twice(tmp_path):
    from atrex.agents.tuner.campaign import planned

    path = tmp_path / "siblings.json"
    path.write_text('{"1": {"change": "set A from 1 to 2"}}')
    others = planned(path, 0)
    assert ("A", 2) not in {(m.knob, m.new) for m in moves(KNOBS, others, 0)}
    assert moves(KNOBS, others, 0)[0].knob == "B" and planned(tmp_path / "none.json", 0) == []
