"""`atrex suite` as a user sees it."""

import json
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import atrex.cli.main  # noqa: F401 - puts the suite's commands together
from atrex.cli.suite import app
from atrex.errors import UserError
from atrex.problems.load import SHIPPED, load_suite

RUN = CliRunner()


def test_list_as_json():
    document = json.loads(RUN.invoke(app, ["list", "--json"]).stdout)
    shapes = {p["operator"]: p["shapes"] for p in document["problems"]}
    assert shapes == {p.operator: len(p.shapes) for p in load_suite().problems.values()}
    assert shapes["rms_norm"] >= 56 and shapes["block_scaled_mm"] >= 24
    assert document["version"] and len(document["hash"]) == 64


def test_list_as_a_table():
    suite = load_suite()
    shapes = sum(len(p.shapes) for p in suite.problems.values())
    share = sum(suite.weights[operator] for operator in suite.problems)
    assert f"{shapes} shapes, {100 * share:.1f}% of the published weight" in RUN.invoke(app, ["list"]).stdout


def test_show_one_shape_as_json():
    document = json.loads(RUN.invoke(app, ["show", "rms_norm", "--shape", "27", "--json"]).stdout)
    shape = document["shapes"]["27"]
    assert shape["input_kwargs"] == {"token_count": 505888, "hidden_size": 128}
    assert shape["roofline_us"]["H200"] > 0 and shape["total_flops"] == 194766880


def test_show_table_has_a_line_a_shape():
    shown = RUN.invoke(app, ["show", "paged_attention_decode"]).stdout
    assert sum(line[:2].strip().isdigit() for line in shown.splitlines()) == 8


def test_show_prints_what_both_sides_take_once():
    shown = RUN.invoke(app, ["show", "moe_count_and_sort"]).stdout
    rows = [line for line in shown.splitlines() if "token_count=" in line]
    assert rows and all(line.count("num_experts=") == 1 for line in rows)


@pytest.mark.parametrize(
    "arguments", [["show", "rms_nrm"], ["show", "rms_norm", "--shape", "x"], ["list", "--suite", "/no"]]
)
def test_bad_input_is_a_user_error(arguments):
    assert isinstance(RUN.invoke(app, arguments).exception, UserError)


def test_validate_passes_a_sound_shape():
    result = RUN.invoke(app, ["validate", "--problem", "rms_norm", "--shapes", "15,27"])
    assert result.exit_code == 0 and "rms_norm: sound" in result.stdout
    assert "not run here: too large (--all runs them): 1 shapes: 27" in result.stdout


def test_validate_fails_a_broken_folder(tmp_path):
    copy = tmp_path / "rms_norm"
    shutil.copytree(SHIPPED / "rms_norm", copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "reference.py"
    path.write_text(path.read_text().replace("wide * inverse_rms * weight.to(acc)", "wide * weight.to(acc)"))
    path = copy / "input.py"
    path.write_text(
        path.read_text().replace("norm_weight(hidden_size, torch.bfloat16)", "torch.ones(hidden_size).bfloat16()")
    )
    result = RUN.invoke(app, ["validate", str(copy), "--shapes", "15", "--json"])
    assert result.exit_code == 1
    checks = {failure["check"] for failure in json.loads(result.stdout)["operators"][0]["failures"]}
    assert "out: copy of input x fails" in checks


def test_generate_roofline_writes_what_is_shipped(tmp_path):
    copy = tmp_path / "silu_and_mul"
    shutil.copytree(SHIPPED / "silu_and_mul", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shipped = (copy / "roofline.json").read_text()
    (copy / "roofline.json").unlink()
    assert RUN.invoke(app, ["generate-roofline", str(copy)]).exit_code == 0
    assert (copy / "roofline.json").read_text() == shipped


def test_reading_problems_does_not_import_torch():
    code = "import sys, atrex.problems as p; p.load_suite(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
