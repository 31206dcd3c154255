"""The README's figures are those of the records that it links to."""

from __future__ import annotations

import json
import re

from atrex.scoring.candidates import score_run
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.runs import load_run
from atrex.scoring.suites import terms
from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text()


def record(name: str) -> dict:
    assert f"](results/{name})" in README
    return json.loads((ROOT / "results" / name).read_text())


def test_the_table_of_the_triton_examples_is_what_their_run_scores():
    run = load_run(ROOT / "results" / "h200-triton-examples")
    weights, shapes = terms([run])
    (scored,) = score_run(run.run, run.records, weights.values, {**PUBLISHED_SHAPES, **shapes}).values()
    shown = re.findall(r"^\| `(\w+)` \| (\d+) of (\d+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.MULTILINE)
    assert {name: tuple(figures) for name, *figures in shown} == {
        name: (f"{each.correct}", f"{each.shapes}", f"{each.s:.3f}", f"{each.attainable:.3f}")
        for name, each in scored.operators.items()
    }


def test_figures_of_single_records():
    serve = record("serve-judge-cpu.json")
    assert f"{serve['requests_per_minute']:.0f} a minute, all passed" in README
    assert serve["verdicts"] == {"passed": 1000}
    judge = record("h200-judge.json")
    one, every = judge["pace"]["rms_norm"], judge["pace"]["all"]
    assert f"{one['seconds']:.1f} s: {one['seconds_per_unit']:.2f} s a unit" in README
    assert f"{every['seconds']:.0f} s, all passed" in README
