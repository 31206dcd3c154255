"""Exported folders stand alone, load as folders made by others, and mean the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from atrex.errors import UserError
from atrex.problems.compare import declared
from atrex.problems.export import bundled, export_problem
from atrex.problems.load import SHIPPED, load_problem, load_suite

SUITE = load_suite()


@pytest.mark.parametrize("operator", SUITE.problems)
def test_an_exported_folder_is_read_as_one_made_by_others_with_the_same_work(tmp_path, operator):
    ours = SUITE.problems[operator]
    theirs = load_problem(export_problem(ours, tmp_path))
    assert theirs.foreign and sorted(p.name for p in theirs.folder.iterdir()) == [
        "input.py", "metadata.json", "reference.py", "roofline.json", "shapes.json",
    ]  # fmt: skip
    for shape in ours.shapes.values():
        work, exported = ours.work(shape), theirs.work(theirs.shapes[shape.id])
        assert (exported.total_flops, exported.total_bytes) == (work.total_flops, work.total_bytes)
    for name in ("reference.py", "input.py"):
        assert "atrex" not in (theirs.folder / name).read_text().replace("Atrex", "")


@pytest.mark.parametrize(("operator", "shape"), [("rms_norm", "46"), ("paged_attention_decode", "5")])
def test_the_same_seed_gives_the_same_inputs_and_outputs(tmp_path, operator, shape):
    ours = SUITE.problems[operator]
    theirs = load_problem(export_problem(ours, tmp_path))
    inputs, again = (p.make_inputs(p.shapes[shape], 5, "cpu") for p in (ours, theirs))
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)
    expected = declared(ours, ours.shapes[shape], inputs)
    assert all(torch.equal(t, expected[n]) for n, t in declared(theirs, theirs.shapes[shape], again).items())


def test_exported_python_needs_nothing_of_this_package(tmp_path):
    folder = export_problem(SUITE.problems["rms_norm"], tmp_path)
    code = (
        "import sys; sys.modules['atrex'] = None\n"
        "import input as i, reference as r\n"
        "print(tuple(r.Model(eps=1e-6)(**i._make_inputs(token_count=3, hidden_size=512)).shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stdout.strip() == "(3, 512)", done.stderr


def test_a_bundle_holds_each_shared_module_once():
    text = bundled(SHIPPED / "fused_add_rms_norm" / "input.py")
    assert text.count("def mixed_rows(") == 1 and "from atrex" not in text


def test_an_export_overwrites_nothing(tmp_path):
    export_problem(SUITE.problems["rms_norm"], tmp_path)
    with pytest.raises(UserError, match="exists already"):
        export_problem(SUITE.problems["rms_norm"], tmp_path)
