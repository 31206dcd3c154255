"""The shipped suite against the published figures (skipped where they are not at hand)."""

import json
import math
from pathlib import Path

import pytest

from atrex.problems import load_suite
from tests.suite.deviations import DEVIATIONS

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "operators.json"
SUITE = load_suite()


@pytest.fixture(scope="module")
def published():
    if not GOLDEN.exists():
        pytest.skip("published figures not at hand")
    return json.loads(GOLDEN.read_text())


def units(published, operator):
    """(our shape, the published unit) of every published shape. Ours are numbered on where published ids have gaps."""
    problem = SUITE.problems[operator]
    origin = {sid: meta for sid, meta in problem.metadata.shapes.items() if meta.origin == "published"}
    assert [meta.published_id for meta in origin.values()] == list(published[operator]["units"])
    return [(problem.shapes[sid], published[operator]["units"][meta.published_id]) for sid, meta in origin.items()]


def plain(value):
    """Our compact {"count": n, "length": l} written out as the published list of n equal lengths."""
    if isinstance(value, dict) and set(value) == {"count", "length"}:
        return [value["length"]] * value["count"]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("operator", SUITE.problems)
def test_shapes_are_the_published_ones(published, operator):
    for shape, unit in units(published, operator):
        assert (shape.init_kwargs, plain(shape.input_kwargs)) == (unit["init"] or {}, unit["input"])


@pytest.mark.parametrize("operator", SUITE.problems)
def test_published_shapes_come_first(operator):
    origins = [meta.origin == "published" for meta in SUITE.problems[operator].metadata.shapes.values()]
    assert origins == sorted(origins, reverse=True)


@pytest.mark.parametrize("operator", SUITE.problems)
def test_work_is_the_published_one_where_that_is_right(published, operator):
    for shape, unit in units(published, operator):
        work = SUITE.problems[operator].work(shape)
        flops, read, written = DEVIATIONS.get(operator, lambda kwargs: (0, 0, 0))(unit["input"])
        assert work.total_flops == sum(unit["flops"].values()) + flops
        assert work.bytes_read == unit["read_bytes"] + read
        assert work.bytes_written == unit["write_bytes"] + written


@pytest.mark.parametrize("operator", SUITE.problems)
def test_provenance_and_production_times(published, operator):
    meta, theirs = SUITE.problems[operator].metadata, published[operator]
    assert (meta.phase, meta.dtype, meta.provenance.profiles) == (
        theirs["phase"],
        theirs["dtype"],
        theirs["num_profiles"],
    )
    for shape, unit in units(published, operator):
        production = {chip: p.us for chip, p in meta.shapes[shape.id].production.items()}
        assert production == unit["production_us"]


def test_weights_are_the_published_ones_normalized(published):
    assert SUITE.weights.keys() == published.keys()
    assert math.fsum(SUITE.weights.values()) == pytest.approx(1, abs=1e-12)
    for operator, theirs in published.items():
        assert SUITE.weights[operator] == pytest.approx(theirs["weight"], rel=1e-12)
