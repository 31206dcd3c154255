"""What the release counts, as `atrex score` needs it for the paper's own ceiling."""

import pytest

from tests.suite.test_golden import SUITE, published, units  # noqa: F401 - a fixture


@pytest.mark.parametrize("operator", SUITE.problems)
def test_published_work_is_the_published_one(published, operator):  # noqa: F811
    problem = SUITE.problems[operator]
    for shape, unit in units(published, operator):
        flops, moved = problem.published_work(shape)
        assert flops == sum(unit["flops"].values()), shape.id
        assert moved == unit["read_bytes"] + unit["write_bytes"], shape.id


def test_shapes_of_our_own_have_no_published_work():
    problem = SUITE.problems["mrope"]
    added = [s for sid, s in problem.shapes.items() if problem.metadata.shapes[sid].origin != "published"]
    assert added and all(problem.published_work(shape) is None for shape in added)
