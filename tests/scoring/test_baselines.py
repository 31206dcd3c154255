"""Baselines are joined to candidates by unit and chip, are named, and are never ranked."""

import json

import pytest
from synthetic import error, failed, unit

from atrex.errors import UserError
from atrex.scoring.aggregate import summarize
from atrex.scoring.baselines import baseline_times, check_names, joined
from atrex.scoring.candidates import score_run
from atrex.scoring.document import score_document
from atrex.scoring.records import Origin
from atrex.scoring.runs import Run
from atrex.scoring.weights import Weights

SHAPES = {"a": 2, "b": 2}
WEIGHTS = {"a": 0.9, "b": 0.1}


def of(name, operator, shape, us, production=False, **kwargs):
    origin = Origin(name=name, library=f"lib-{name}", version="1.2", calls="f", production=production)
    timed = {"median_us": us, "p10_us": us, "p90_us": us, "ci_us": (us, us), "n": 100, "method": "events"}
    return unit(operator, shape, performance=timed, baseline=origin, dsl="none", **kwargs)


def run(*records, path="run", **about):
    return Run(path, about, list(records))


def mine(operator, shape, us, **kwargs):
    timed = {"median_us": us, "p10_us": us, "p90_us": us, "ci_us": (us, us), "n": 100, "method": "events"}
    return unit(operator, shape, performance=timed, **kwargs)


def summary(loaded):
    return next(iter(score_run(loaded.run, loaded.records, WEIGHTS, SHAPES).values())).summary


def test_ratios_are_the_median_over_operators_of_medians_over_shapes():
    base = run(of("fla", "a", "0", 10.0), of("fla", "a", "1", 40.0), of("fla", "b", "0", 5.0), path="base")
    candidates = run(mine("a", "0", 10.0), mine("a", "1", 10.0), mine("b", "0", 10.0))
    ratio = summary(joined(candidates, baseline_times(base))).baselines["fla"]
    assert (ratio.ratio, ratio.operators) == ((2.5 + 0.5) / 2, 2)


def test_a_wrong_or_doubtful_unit_of_a_baseline_gives_no_ratio():
    base = run(
        of("fla", "a", "0", 10.0, correctness={"passed": False}),
        error("unstable", operator="a", shape="1", baseline=Origin(name="fla", library="l", version="1.2", calls="f")),
        path="base",
    )
    assert summary(joined(run(mine("a", "0", 10.0), mine("a", "1", 10.0)), baseline_times(base))).baselines == {}


def test_another_chip_is_not_compared_and_is_said():
    base = run(of("fla", "a", "0", 10.0, chip="H100"), path="base")
    found = joined(run(mine("a", "0", 10.0, chip="H200")), baseline_times(base))
    assert summary(found).baselines == {}
    assert "H100" in found.notes[0] and "H200" not in found.notes[0].split(":")[0]


def test_another_suite_is_said():
    base = run(of("fla", "a", "0", 10.0), path="base", suite_hash="one")
    found = joined(run(mine("a", "0", 10.0), suite_hash="two"), baseline_times(base))
    assert "another suite" in found.notes[0]


def test_an_installed_production_library_takes_the_column_and_is_named():
    base = run(of("torch", "a", "0", 50.0), of("vllm", "a", "0", 20.0, production=True), path="base")
    found = summary(joined(run(mine("a", "0", 10.0)), baseline_times(base)))
    assert found.baselines["production"].ratio == 2.0
    assert found.production == {"lib-vllm 1.2": 1}


def test_the_first_production_library_given_takes_an_operator():
    one = run(of("vllm", "a", "0", 20.0, production=True), path="one")
    two = run(of("sglang", "a", "0", 5.0, production=True), of("sglang", "b", "0", 30.0, production=True), path="two")
    found = summary(
        joined(run(mine("a", "0", 10.0), mine("b", "0", 10.0)), [*baseline_times(one), *baseline_times(two)])
    )
    assert found.baselines["production"].ratio == (2.0 + 3.0) / 2
    assert found.production == {"lib-sglang 1.2": 1, "lib-vllm 1.2": 1}


def test_a_published_time_of_the_chip_is_the_production_time():
    base = run(of("vllm", "a", "0", 20.0, production=True), path="base")
    record = mine("a", "0", 10.0, baselines={"production": 70.0}, production="published, aiter")
    found = summary(joined(run(record), baseline_times(base)))
    assert found.baselines["production"].ratio == 7.0 and found.baselines["vllm"].ratio == 2.0
    assert found.production == {"published, aiter": 1}


def test_a_baseline_is_no_candidate_set():
    records = [of("fla", "a", "0", 10.0), mine("a", "0", 10.0, candidate="mine.py")]
    assert list(score_run({}, records, WEIGHTS, SHAPES)) == ["mine.py"]
    with pytest.raises(ValueError, match="takes no part in any ranking"):
        summarize(records[:1], WEIGHTS, SHAPES)


def test_the_document_has_baselines_apart_without_a_summary():
    base = run(
        of("fla", "a", "0", 10.0),
        failed(
            "runtime",
            "timeout",
            operator="a",
            shape="1",
            baseline=Origin(name="fla", library="lib-fla", version="1.2", calls="f"),
        ),
        path="base",
    )
    (found,) = score_document([base], Weights(WEIGHTS, "test"), SHAPES)["runs"]
    assert found["candidates"] == []
    (baseline,) = found["baselines"]
    assert baseline["origin"] == {"name": "fla", "library": "lib-fla", "version": "1.2"}
    assert "summary" not in baseline
    (row,) = baseline["operators"]
    assert (row["shapes"], row["correct"], row["median_us"]) == (2, 1, {"0": 10.0})
    json.dumps(found)


def test_a_run_of_candidates_is_no_baseline_run():
    with pytest.raises(UserError, match="no record of a baseline"):
        baseline_times(run(mine("a", "0", 10.0)))


def test_the_same_baseline_twice_is_refused():
    one, two = (run(of("fla", "a", "0", 10.0), path=path) for path in ("one", "two"))
    with pytest.raises(UserError, match="one of them"):
        check_names([*baseline_times(one), *baseline_times(two)])
