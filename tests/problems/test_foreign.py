"""A folder in the published form: other keys, `_make_inputs`, a pinned device, null kwargs, a tuple of outputs."""

import json

import pytest
import torch

from atrex.problems import load_problem
from atrex.problems.compare import compare, declared, oracle

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        scale = x.float().abs().amax(-1) / 4
        return (x.float() / scale[:, None]).to(torch.bfloat16), scale, (x > 0).to(torch.int32)
"""
INPUT = """
import torch
def _make_inputs(rows):
    return {"x": torch.randn(rows, 32, dtype=torch.bfloat16, device="cuda")}
"""


@pytest.fixture
def problem(tmp_path):
    folder = tmp_path / "row_scale"
    folder.mkdir()
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "input.py").write_text(INPUT)
    documents = {
        "shapes": {"0": {"init_kwargs": None, "input_kwargs": {"rows": 8}}},
        "metadata": {
            "id": "x_001",
            "dtype": "bf16",
            "input_dtypes": {"x": "bf16"},
            "output_dtypes": {"q": "bf16", "scale": "bf16", "sign": "int32"},
            "origin": {"framework": "vllm", "symbol": "row_scale"},
            "shapes": {"0": {"production_performance": {"framework": "aiter", "performance_us": 7.5}, "new": 1}},
        },
        "roofline": {
            "shapes": {
                "0": {"semantic_W_flops": {"bf16": 512}, "semantic_Q_read_bytes": 512, "semantic_Q_write_bytes": 544}
            }
        },
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return load_problem(folder)


def judged(problem, change=lambda outputs: None):
    shape = problem.shape("0")
    inputs = problem.make_inputs(shape, 1, "cpu")
    base = declared(problem, shape, inputs)
    outputs = {name: t.clone() for name, t in base.items()}
    change(outputs)
    return compare(problem, shape, inputs, oracle(problem, shape, inputs), base, outputs)


def test_it_loads_with_its_own_work(problem):
    assert problem.foreign and problem.operator == "row_scale"
    work = problem.work(problem.shape("0"))
    assert (work.total_flops, work.bytes_read, work.bytes_written) == (512, 512, 544)
    assert problem.metadata.shapes["0"].production["XPU-A"].us == 7.5


def test_tuple_outputs_take_metadata_names(problem):
    assert list(declared(problem, problem.shape("0"), problem.make_inputs(problem.shape("0"), 1, "cpu"))) == [
        "q",
        "scale",
        "sign",
    ]


def test_published_tolerance_applies(problem):
    assert judged(problem).passed
    assert judged(problem, lambda o: o["q"].add_(0.009)).passed
    assert not judged(problem, lambda o: o["q"].add_(0.3)).passed


def test_integers_must_be_equal(problem):
    result = judged(problem, lambda o: o["sign"][2, 3].add_(1))
    assert not result.passed and result.output == "sign" and result.index == [2, 3]


def test_metadata_of_any_form_loads(problem):
    (problem.folder / "metadata.json").write_text(json.dumps(["anything"]))
    loaded = load_problem(problem.folder)
    inputs = loaded.make_inputs(loaded.shape("0"), 1, "cpu")
    assert {n: t.dtype for n, t in declared(loaded, loaded.shape("0"), inputs).items()} == {
        "out0": torch.bfloat16,
        "out1": torch.float32,
        "out2": torch.int32,
    }
