"""Operands that a forward has to change in place: declared ones are read back, restored, and watched like outputs."""

from __future__ import annotations

import json

import pytest

from atrex.evaluate.candidates import Candidate
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_problem

pytestmark = pytest.mark.alone

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, state):
        acc = torch.promote_types(x.dtype, torch.float32)
        x, state = x.to(acc), state.to(acc)
        return {"out": x + state, "state": 2 * state - x}
"""
INPUT = """
import torch
def make_inputs(rows):
    return {"x": 3 * torch.randn(rows, 64), "state": 3 * torch.randn(rows, 64)}
"""
WORK = """
from atrex.roofline.work import Work
def work(init_kwargs, input_kwargs):
    n = 64 * input_kwargs["rows"]
    return Work(flops={"vector": {"fp32": 3 * n}}, bytes_read=8 * n, bytes_written=8 * n)
"""
HONEST = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, state):
        out = x + state
        state.mul_(2).sub_(x)
        return out
"""


@pytest.fixture
def problem(tmp_path):
    folder = tmp_path / "step"
    folder.mkdir()
    for name, text in (("reference.py", REFERENCE), ("input.py", INPUT), ("work.py", WORK)):
        (folder / name).write_text(text)
    operands = {"x": {"dtype": "fp32"}, "state": {"dtype": "fp32"}}
    metadata = {
        "operator": "step",
        "inputs": operands,
        "outputs": {"out": {"dtype": "fp32"}, "state": {"dtype": "fp32"}},
        "mutates": ["state"],
        "compare": {"out": {"kind": "float"}, "state": {"kind": "float"}},
        "shapes": {"0": {"origin": "atrex"}},
    }
    (folder / "shapes.json").write_text(json.dumps({"0": {"init_kwargs": {}, "input_kwargs": {"rows": 32}}}))
    (folder / "metadata.json").write_text(json.dumps(metadata))
    (folder / "roofline.json").write_text(json.dumps({"shapes": {}}))
    from atrex.problems.generate import generate_roofline

    generate_roofline(folder)
    return load_problem(folder)


@pytest.fixture
def judge(setup, problem, tmp_path):
    def run(source):
        path = tmp_path / "step.py"
        path.write_text(source)
        unit = Unit(Candidate(path, str(path), str(path), "step", source), problem, problem.shapes["0"], "cpp")
        return UnitJudge(setup, unit).run()

    return run


def test_a_declared_mutation_passes_with_every_timed_call_on_a_restored_operand(judge):
    record = judge(HONEST)
    assert record.verdict.status == "passed", record.verdict


@pytest.mark.parametrize(
    ("change", "category"),
    [
        (("state.mul_(2).sub_(x)", "pass"), "numeric_mismatch"),
        (("state.mul_(2).sub_(x)", "state.mul_(2).sub_(x)[-1:].sub_(1)"), "numeric_mismatch"),
        (("state.mul_(2).sub_(x)", "state.mul_(2).sub_(x); x.mul_(1).add_(1)"), "interface"),
        (("return out", "return {'out': out, 'state': state}"), "interface"),
    ],
)
def test_a_mutation_left_out_or_undeclared_fails(judge, change, category):
    record = judge(HONEST.replace(*change))
    assert record.verdict.category == category, record.verdict


def test_a_mutation_that_comes_after_the_return_is_caught(judge):
    later = (
        "import threading, time\n"
        + HONEST.replace("def forward(self", "n = 0\n    def forward(self").replace("out = x", "self.n += 1; out = x")
    ).replace(
        "state.mul_(2).sub_(x)",
        "work = lambda: (time.sleep(0.002), state.mul_(2).sub_(x))\n"
        "        work() if self.n < 12 else threading.Thread(target=work).start()",
    )
    assert judge(later).verdict.category == "integrity"


@pytest.mark.parametrize("work", ["state.mul_(2)", "state.mul_(2).sub_(x)[:1].add_(1)"], ids=["half", "wrong"])
def test_a_mutation_that_is_left_out_of_the_judge_s_batches_is_caught(judge, work):
    seen = "import traceback\n" + HONEST.replace(
        "state.mul_(2).sub_(x)",
        "batch = any(frame.name == 'batch' for frame in traceback.extract_stack())\n"
        f"        {work} if batch else state.mul_(2).sub_(x)",
    )
    verdict = judge(seen).verdict
    assert verdict.category == "integrity" and "batch" in verdict.reason, verdict


def test_a_forward_that_returns_nothing_passes_by_what_it_leaves_in_its_operand(setup, problem, tmp_path):
    folder = problem.folder
    text = json.loads((folder / "metadata.json").read_text())
    del text["outputs"]["out"], text["compare"]["out"]
    (folder / "metadata.json").write_text(json.dumps(text))
    (folder / "reference.py").write_text(REFERENCE.replace('"out": x + state, ', ""))
    path = tmp_path / "step.py"
    path.write_text(HONEST.replace("return out", "return None"))
    alone = load_problem(folder)
    unit = Unit(Candidate(path, str(path), str(path), "step", path.read_text()), alone, alone.shapes["0"], "cpp")
    verdict = UnitJudge(setup, unit).run().verdict
    assert verdict.status == "passed", verdict
