"""Readiness and shortcuts over a candidate set."""

from synthetic import unit

from atrex.scoring.aggregate import summarize
from atrex.scoring.readiness import Shown, readiness, unit_readiness

WEIGHTS, SHAPES = {"a": 0.5, "b": 0.5}, {"a": 2, "b": 1}


def ready(record, **properties):
    return record.model_copy(update={"readiness": {**properties, "why": {}}})


def shortcut(record, name):
    return record.model_copy(update={"verdict": record.verdict.model_copy(update={"shortcut": name})})


def test_a_property_is_counted_over_the_units_where_it_was_tried():
    records = [
        ready(unit("a", "0", 0.4), graph_capturable=True, concurrent=None),
        ready(unit("a", "1", 0.4), graph_capturable=False, concurrent=None),
        unit("b", "0", 0.4),
    ]
    assert readiness(records) == {"graph_capturable": Shown(1, 2)}
    assert summarize(records, WEIGHTS, SHAPES).readiness == {"graph_capturable": Shown(1, 2)}


def test_a_units_own_count_leaves_out_what_was_not_tried():
    assert unit_readiness(ready(unit("a", "0", 0.4), graph_capturable=True, own_stream=False, concurrent=None)) == (
        Shown(1, 2)
    )
    assert unit_readiness(unit("a", "0", 0.4)) is None


def test_shortcuts_are_counted_by_what_took_the_rest():
    records = [
        shortcut(unit("a", "0", 0.4), "torch"), shortcut(unit("a", "1", 0.4), "vendor"), unit("b", "0", 0.4),
    ]  # fmt: skip
    assert summarize(records, WEIGHTS, SHAPES).shortcuts == {"torch": 1, "vendor": 1}
