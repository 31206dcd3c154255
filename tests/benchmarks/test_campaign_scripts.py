"""The prepared campaigns: plans that would be taken, of kernels and shapes that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.drive import kernel

from atrex.optimize.model import Plan
from atrex.problems.load import load_suite
from atrex.problems.shape_ids import select_shapes
from atrex.wiki.load import load_wiki

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "kernels" / "campaigns").glob("*.json"))


@pytest.fixture(scope="module")
def cards():
    return set(load_wiki().cards)


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_can_be_followed(path, cards, tmp_path):
    found = json.loads(path.read_text())
    assert select_shapes(load_suite().problem(path.stem), found["shapes"])
    assert (ROOT / found["baseline"]).exists() and found["iterations"]
    for number, attempts in enumerate(found["iterations"]):
        for attempt in attempts:
            assert set(Plan.model_validate(attempt["plan"]).cards) <= cards
            assert "class Model" in kernel(path.stem, attempt, tmp_path, number).read_text()


def test_a_text_that_is_not_there_once_is_refused(tmp_path):
    attempt = {"kernel": "kernels/h200/rms_norm.py", "substitute": [["no such text", ""]]}
    with pytest.raises(SystemExit, match="rms_norm: substitute: kernels/h200/rms_norm.py holds 'no such text' 0 times"):
        kernel("rms_norm", attempt, tmp_path, 0)
