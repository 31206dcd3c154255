import pytest
from synthetic import error, failed, random_suite, unit

from atrex.scoring.failures import ROWS, exit_code, failures, stage_totals
from atrex.scoring.records import CATEGORIES, Stage, Status, Verdict


def counts(records):
    return {c.row.title: c.count for c in failures(records)}


def test_every_category_has_one_row():
    placed = [(row.stage, category) for row in ROWS for category in row.categories]
    assert sorted(placed) == sorted((stage, c) for stage, categories in CATEGORIES.items() for c in categories)


@pytest.mark.parametrize(("stage", "category", "title"), [
    ("compile", "no_artifact", "exception before first output"),
    ("runtime", "interface", "candidate-raised exception"),
    ("runtime", "integrity", "numeric mismatch"),
    ("performance", "over_budget", "correct-but-slow timeout"),
])
def test_a_category_without_a_published_row_is_counted_in_one_and_named(stage, category, title):
    found = {c.row.title: c for c in failures([failed(stage, category)])}[title]
    assert (found.count, found.share, found.by_category) == (1, 1.0, {category: 1})


def test_a_compile_exception_is_not_a_runtime_one():
    found = counts([failed("compile", "exception"), failed("runtime", "exception", shape="1")])
    assert (found["exception before first output"], found["candidate-raised exception"]) == (1, 1)


def test_passed_error_and_held_out_units_are_no_failures():
    records = [unit(), error("unstable", shape="1"), failed("compile", "exception", shape="h0", held_out=True)]
    assert set(counts(records).values()) == {0}


def test_stages_and_shares_add_up():
    records = random_suite()
    found = failures(records)
    total = sum(r.verdict.status == Status.FAILED for r in records)
    assert sum(stage_totals(found).values()) == total > 0
    assert sum(c.share for c in found) == pytest.approx(1)


def test_a_failure_of_no_category_is_refused():
    record = unit(verdict=Verdict(status=Status.FAILED, stage=Stage.COMPILE, category="over_budget"))
    with pytest.raises(ValueError, match="no failure category"):
        failures([record])


def test_errors_and_only_errors_raise_the_exit_code():
    assert exit_code([unit(), failed("compile", "exception", shape="1")]) == 0
    assert exit_code([unit(), error("beyond_roofline", shape="1")]) == 1
