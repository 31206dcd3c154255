"""Every template is a candidate as it stands: the C++ ones pass the judge, the Triton ones compile for sm_90a."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from atrex.agents.tuner.knobs import find, render
from atrex.agents.tuner.templates import known, path
from atrex.problems.load import SHIPPED, load_problem
from atrex.problems.model import Shape
from tests.compile.one_process import ROOT, compile_here


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Records of all C++ templates on their first shape, by operator."""
    out = tmp_path_factory.mktemp("judged") / "run"
    command = [sys.executable, "-m", "atrex.cli.main", "eval", str(path("cpp", "rms_norm").parent), "--device", "cpu",
               "--shapes", "0", "--seeds", "1", "--no-held-out", "--no-readiness", "--out", str(out)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = map(json.loads, (out / "units.jsonl").read_text().splitlines())
    return {record["operator"]: record for record in records}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("operator", known()["cpp"])
def test_a_cpp_template_passes_the_judge(judged, operator):
    assert judged[operator]["verdict"]["status"] == "passed", judged[operator]["verdict"]
    assert judged[operator]["adoption"]["share"] > 0.5


RAGGED = {
    "rms_norm": {"token_count": 37, "hidden_size": 1003},
    "silu_and_mul": {"shape": [37, 2 * 1003]},
    "block_scaled_mm": {"m": 37, "n": 384, "k": 384, "group_n": 128, "group_k": 128},
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("end", [0, -1], ids=["first values", "last values"])
@pytest.mark.parametrize("operator", known()["cpp"])
def test_a_cpp_template_is_right_at_the_ends_of_its_space(operator, end):
    problem, source = load_problem(SHIPPED / operator), path("cpp", operator).read_text()
    space: dict = {}
    exec(render(source, {knob.name: knob.options[end] for knob in find(source)}), space)
    init = next(iter(problem.shapes.values())).init_kwargs
    shape = Shape("ragged", init, RAGGED[operator])
    inputs = problem.make_inputs(shape, 0, "cpu")
    got, expected = space["Model"](**init)(**inputs), problem.reference(shape)(**inputs)
    error = (got.double() - expected.double()).abs() / (
        expected.double().abs() + expected.double().square().mean() ** 0.5
    )
    assert got.dtype == expected.dtype and error.max() <= max(torch.finfo(got.dtype).eps, 2**-14)


@pytest.fixture(scope="module")
def compiled():
    """Outcomes of every Triton template with its defaults and its smallest tiles, on a few shapes.

    The largest tiles of block_scaled_mm with most stages do not fit into shared memory; a search skips them.
    """
    candidates = {}
    for operator in known()["triton"]:
        source = path("triton", operator).read_text()
        for name, chosen in {"defaults": {}, "smallest": {k.name: k.options[0] for k in find(source)}}.items():
            candidates[f"{operator} {name}"] = {
                "source": render(source, chosen), "dsl": "triton", "target": "sm_90a", "operator": operator,
                "shapes": ["0", "5", "12"],
            }  # fmt: skip
    return compile_here(candidates)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install 'atrex[triton]'")
@pytest.mark.parametrize("at", ["defaults", "smallest"])
@pytest.mark.parametrize("operator", known()["triton"])
def test_a_triton_template_compiles(compiled, operator, at):
    shapes = compiled[f"{operator} {at}"]["shapes"]
    assert {(each["status"], each["reason"]) for each in shapes.values()} == {("compiled", "")}
    assert {a["kind"] for each in shapes.values() for a in each["artifacts"]} == {"cubin"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install 'atrex[triton]'")
def test_triton_templates_are_right_in_the_interpreter(tmp_path):
    for file in [*(ROOT / "examples" / "candidates" / "triton").glob("*.py"),
                 *(path("triton", operator) for operator in known()["triton"])]:  # fmt: skip
        shutil.copy(file, tmp_path)
    script = ROOT / "tests" / "examples" / "interpret_examples.py"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script, tmp_path], env=env, capture_output=True, text=True)
    errors = json.loads(done.stdout.splitlines()[-1])
    assert all(max(errors[operator]) < 2e-3 for operator in known()["triton"]), errors
