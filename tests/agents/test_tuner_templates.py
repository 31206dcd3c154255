"""Every template is a candidate as it stands: the C++ ones pass the judge, the Triton ones compile for sm_90a."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
from typer.testing import CliRunner

from atrex.agents.tuner.knobs import find, render
from atrex.agents.tuner.templates import known, path
from atrex.cli.main import app
from tests.compile.one_process import compile_here

SMALL = {"rms_norm": "15", "silu_and_mul": "0", "block_scaled_mm": "0"}
EXTREMES = {"first": 0, "last": -1}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("operator", known()["cpp"])
def test_a_cpp_template_passes_the_judge(operator, tmp_path):
    command = ["eval", str(path("cpp", operator)), "--device", "cpu", "--shapes", SMALL[operator], "--seeds", "1",
               "--no-held-out", "--no-readiness", "--out", str(tmp_path / "run"), "--json"]  # fmt: skip
    CliRunner().invoke(app, command)
    (line,) = (tmp_path / "run" / "units.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["verdict"]["status"] == "passed", record["verdict"]
    assert record["adoption"]["share"] > 0.5


@pytest.fixture(scope="module")
def compiled():
    """Outcomes of every Triton template with its defaults and at the ends of its space, on a few shapes."""
    candidates = {}
    for operator in known()["triton"]:
        source = path("triton", operator).read_text()
        ends = {name: {k.name: k.options[i] for k in find(source)} for name, i in EXTREMES.items()}
        for name, chosen in {"defaults": {}, **ends}.items():
            candidates[f"{operator} {name}"] = {
                "source": render(source, chosen), "dsl": "triton", "target": "sm_90a", "operator": operator,
                "shapes": ["0", "5", "12"],
            }  # fmt: skip
    return compile_here(candidates)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install 'atrex[triton]'")
@pytest.mark.parametrize("at", ["defaults", *EXTREMES])
@pytest.mark.parametrize("operator", known()["triton"])
def test_a_triton_template_compiles(compiled, operator, at):
    shapes = compiled[f"{operator} {at}"]["shapes"]
    assert {(each["status"], each["reason"]) for each in shapes.values()} == {("compiled", "")}
    assert {a["kind"] for each in shapes.values() for a in each["artifacts"]} == {"cubin"}
