"""The fleet under examples/: its traces are the generator's, and every command that takes a fleet takes it."""

import gzip
import json
from pathlib import Path

import pytest

from atrex.problems.load import load_suite
from tests.traces import fleets, scene
from tests.traces.test_build import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet"


@pytest.mark.parametrize("name", sorted(fleets.example()))
def test_the_traces_are_the_generators(name):
    written = gzip.decompress((EXAMPLE / name).read_bytes())
    assert written == scene.render(fleets.example()[name].events, "compact")


def test_it_builds_a_suite_with_weights(tmp_path):
    out = run("build", "--fleet", EXAMPLE / "fleet.yaml", "--out", tmp_path / "suite", "--jobs", 1)
    assert "kept out" not in out
    suite = load_suite(tmp_path / "suite")
    assert suite.version == "1" and sum(suite.weights.values()) == pytest.approx(1)
    kwargs = [s.input_kwargs for s in suite.problem("unified_attention").shapes.values()]
    mixed = next(k for k in kwargs if "context_lens" in k)
    assert mixed["num_seqs"] == 17 and mixed["seq_lens"][-1] == {"count": 16, "length": 1}


def test_its_weights_are_printed(tmp_path):
    document = json.loads(run("weights", "--fleet", EXAMPLE / "fleet.yaml", "--json", "--jobs", 1))
    assert document["applications"]["chat"]["share"] == 0.75
