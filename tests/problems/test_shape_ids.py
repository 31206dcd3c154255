"""Which shapes a text names."""

from dataclasses import replace
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.evaluate.budgets import CPU_LIMIT
from atrex.evaluate.candidates import resolve
from atrex.evaluate.plan import make_plan
from atrex.problems.shape_ids import id_ranges, select_shapes

EXAMPLE = Path(__file__).parents[2] / "examples" / "candidates" / "cpp" / "rms_norm.py"


def test_published_names_the_440_of_the_release(suite):
    published = {name: select_shapes(suite.problem(name), "published") for name in suite.problems}
    assert sum(map(len, published.values())) == 440
    assert all(shapes for shapes in published.values())
    whole = suite.problem("l2_norm").shapes
    assert len(whole) > len(published["l2_norm"]) and set(whole) > {shape.id for shape in published["l2_norm"]}


def test_where_nothing_was_published_there_is_nothing_to_name(suite):
    problem = suite.problem("rms_norm")
    mine = replace(problem, metadata=problem.metadata.model_copy(update={"shapes": {}}))
    with pytest.raises(UserError, match="--shapes published: rms_norm has no published shape"):
        select_shapes(mine, "published")


@pytest.mark.parametrize(("text", "limited"), [(None, True), ("published", True), ("0-55", False)])
def test_only_shapes_that_are_named_one_by_one_are_run_whatever_their_size(suite, text, limited):
    found = resolve([str(EXAMPLE)], list(suite.problems), "rms_norm")
    tiny = replace(CPU_LIMIT, bytes=1 << 20)
    plan = make_plan(suite, found, text, "cpp", "cpu", held_out=False, limit=tiny)
    assert bool(plan.too_large) is limited and (len(plan.units) == 56) is not limited
    ids = {unit.shape.id for unit in plan.units} | {shape for _, shape in plan.too_large}
    assert id_ranges(sorted(ids, key=int)) == "0-55"
