"""Measured times that no kernel could have reached: named, and a finding unless metadata says why."""

from __future__ import annotations

import json

import pytest

from atrex.problems.lint import check_folder
from atrex.problems.load import load_problem, load_suite
from atrex.problems.under_roofline import under_roofline

from .conftest import edit_json

CHECK = "measured times are over the roofline, or metadata says why not"


def described(folder, **meta):
    """The folder with shape 1 described so: 40 x 128 bf16, 21 KB, 0.004 us on XPU-A."""
    edit_json(folder / "metadata.json", lambda m: m["shapes"]["1"].update(meta))
    return load_problem(folder)


def findings(problem):
    return [(f.passed, f.detail) for f in check_folder(problem) if f.check == CHECK]


def test_a_production_time_under_the_roofline_is_a_finding(folder):
    problem = described(folder, production={"XPU-A": {"us": 0.001, "backend": "aiter"}})
    ((passed, detail),) = findings(problem)
    assert not passed
    assert "shape 1 (atrex): production 0.001 us on XPU-A, roofline 0.0039" in detail


def test_a_traced_mean_under_the_roofline_is_a_finding(folder):
    problem = described(folder, call_count=10, traced_total_us={"H20": 0.01})
    ((passed, detail),) = findings(problem)
    assert not passed and "traced 0.001 us on H20" in detail


def test_an_explained_one_is_listed_and_no_finding(folder):
    problem = described(folder, production={"XPU-A": {"us": 0.001}}, under_roofline="measured on another shape")
    assert findings(problem) == [(True, "")]
    (found,) = under_roofline(problem)
    assert (found.shape, found.origin, found.explained) == ("1", "atrex", "measured on another shape")


def test_a_time_over_the_roofline_is_none(folder):
    assert under_roofline(described(folder, production={"XPU-A": {"us": 5.0}})) == []


def test_a_chip_that_nothing_is_known_of_is_named(folder):
    ((passed, detail),) = findings(described(folder, production={"Z9": {"us": 5.0}}))
    assert not passed and "metadata.json: shapes.1.production" in detail and "Z9" in detail


def test_traced_times_need_the_number_of_calls(folder):
    with pytest.raises(Exception, match="call_count"):
        described(folder, traced_total_us={"H20": 0.01})


def test_the_published_suite_has_eighteen_all_explained():
    found = {p.operator: under_roofline(p) for p in load_suite().problems.values()}
    assert sum(map(len, found.values())) == 18
    assert all(each.explained and each.source == "traced" for several in found.values() for each in several)
    assert sum(bool(m.traced_us) for p in load_suite().problems.values() for m in p.metadata.shapes.values()) == 91


def test_a_folder_made_by_others_is_looked_at_too(tmp_path):
    folder = tmp_path / "double"
    folder.mkdir()
    (folder / "reference.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    )
    (folder / "input.py").write_text("import torch\ndef _make_inputs(n):\n    return {'x': torch.randn(n)}\n")
    work = {"semantic_W_flops": {"fp32": 1024}, "semantic_Q_read_bytes": 4096, "semantic_Q_write_bytes": 4096}
    timed = {"XPU-A": {"framework": "sglang", "performance_us": 0.0001}}
    for name, document in {
        "shapes": {"0": {"init_kwargs": {}, "input_kwargs": {"n": 1024}}},
        "roofline": {"shapes": {"0": work}},
        "metadata": {"shapes": {"0": {"production_performance": timed, "call_count": 4, "total_duration_us": 0.0004}}},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    found = under_roofline(load_problem(folder))
    assert [(each.source, each.us) for each in found] == [
        ("production", pytest.approx(1e-4)),
        ("traced", pytest.approx(1e-4)),
    ]
