"""The shipped suite against the published figures (skipped where they are not at hand)."""

import json
import math
from pathlib import Path

import pytest

from atrex.problems import load_suite

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "operators.json"
SUITE = load_suite()
UNREAD_PAGES = 16


@pytest.fixture(scope="module")
def published():
    if not GOLDEN.exists():
        pytest.skip("published figures not at hand")
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("operator", SUITE.problems)
def test_shapes_are_the_published_ones(published, operator):
    ours = {s.id: (s.init_kwargs, s.input_kwargs) for s in SUITE.problems[operator].shapes.values()}
    assert ours == {sid: (u["init"], u["input"]) for sid, u in published[operator]["units"].items()}


@pytest.mark.parametrize("operator", SUITE.problems)
def test_work_is_the_published_one_where_that_is_right(published, operator):
    problem = SUITE.problems[operator]
    for sid, unit in published[operator]["units"].items():
        work, kwargs = problem.work(problem.shapes[sid]), unit["input"]
        unread = 0
        if operator == "paged_attention_decode":
            page = kwargs["block_size"] * kwargs["num_kv_heads"] * kwargs["head_size"]
            unread = UNREAD_PAGES * 2 * 2 * page
        assert work.total_flops == sum(unit["flops"].values())
        assert work.bytes_read == unit["read_bytes"] - unread
        assert work.bytes_written == unit["write_bytes"]


@pytest.mark.parametrize("operator", SUITE.problems)
def test_provenance_and_production_times(published, operator):
    meta, theirs = SUITE.problems[operator].metadata, published[operator]
    assert (meta.phase, meta.dtype, meta.provenance.profiles) == (
        theirs["phase"],
        theirs["dtype"],
        theirs["num_profiles"],
    )
    for sid, unit in theirs["units"].items():
        production = {chip: p.us for chip, p in meta.shapes[sid].production.items()}
        assert production == unit["production_us"]


def test_weights_are_the_published_ones_normalized(published):
    assert SUITE.weights.keys() == published.keys()
    assert math.fsum(SUITE.weights.values()) == pytest.approx(1, abs=1e-12)
    for operator, theirs in published.items():
        assert SUITE.weights[operator] == pytest.approx(theirs["weight"], rel=1e-12)
