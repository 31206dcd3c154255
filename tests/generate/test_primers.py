"""The code in the prompts' primers is code: it compiles for its target, and C++ gives right sums."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from importlib.resources import files

import pytest
import torch

from atrex.compile.gate import Job, compile_candidate
from atrex.dsls.base import get, names
from atrex.dsls.cuda import find_nvcc
from atrex.dsls.offline import parse_target
from atrex.dsls.offline.linker import find_linker
from atrex.problems.generate import generate_roofline
from atrex.problems.load import load_problem

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return (x.double() + y.double()).to(x.dtype)
"""
INPUT = """
import torch
def make_inputs(n):
    return {"x": torch.randn(n).to(torch.bfloat16), "y": torch.randn(n).to(torch.bfloat16)}
"""
WORK = """
from atrex.roofline.work import Work
def work(init_kwargs, input_kwargs):
    n = input_kwargs["n"]
    return Work(flops={"vector": {"fp32": n}}, bytes_read=4 * n, bytes_written=2 * n)
"""


def code(dsl: str) -> str:
    text = files("atrex.generate").joinpath("prompts", f"{dsl}.md").read_text()
    (found,) = re.findall(r"```python\n(.*?)```", text, re.S)
    return found


@pytest.fixture
def problem(tmp_path):
    folder = tmp_path / "add"
    folder.mkdir()
    for name, text in (("reference.py", REFERENCE), ("input.py", INPUT), ("work.py", WORK)):
        (folder / name).write_text(text)
    metadata = {
        "operator": "add",
        "inputs": {"x": {"dtype": "bf16"}, "y": {"dtype": "bf16"}},
        "outputs": {"out": {"dtype": "bf16"}},
        "compare": {"out": {"kind": "float"}},
        "shapes": {"0": {"origin": "atrex"}},
    }
    (folder / "shapes.json").write_text(json.dumps({"0": {"init_kwargs": {}, "input_kwargs": {"n": 5000}}}))
    (folder / "metadata.json").write_text(json.dumps(metadata))
    (folder / "roofline.json").write_text(json.dumps({"shapes": {}}))
    generate_roofline(folder)
    return load_problem(folder)


def _needs(dsl: str) -> list:
    have = {
        "triton": importlib.util.find_spec("triton"),
        "gluon": importlib.util.find_spec("triton"),
        "cutedsl": importlib.util.find_spec("cutlass"),
        "flydsl": importlib.util.find_spec("flydsl") and find_linker(),
        "cuda": find_nvcc(),
    }
    marks = [pytest.mark.skipif(not have[dsl], reason=get(dsl).install or "needs its compiler")]
    return marks + [pytest.mark.slow] * (dsl not in ("triton", "gluon"))


@pytest.mark.parametrize("dsl", [pytest.param(d, marks=_needs(d)) for d in names() if get(d).devices != ("cpu",)])
def test_a_primer_s_kernel_compiles(problem, dsl):
    target = parse_target(get(dsl).usual_target)
    job = Job("primer", code(dsl), "candidate.py", "add", ["0"], dsl, target, problem.folder)
    (outcome,) = compile_candidate(job, 120)
    assert outcome.status == "compiled" and outcome.artifacts, outcome


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cpp_primer_adds(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text(code("cpp"))
    spec = importlib.util.spec_from_file_location("primer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = torch.randn(1001), torch.randn(1001)
    assert torch.equal(module.Model()(x, y), x + y)
