"""Baselines on a CUDA device: what is installed agrees with the references and passes the gate, its origin named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from benchmarks.references.baseline_checks import as_check
from benchmarks.references.cases import chosen_shapes
from benchmarks.references.outcome import AGREES, check_case
from benchmarks.references.registry import PYTORCH, Case, Unsupported

from atrex import baselines
from atrex.problems.load import load_suite

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SUITE = load_suite()
# vLLM and SGLang import whole servers; their kernels are compared by benchmarks/references, module by module.
LIBRARIES = [n for n in baselines.names() if n not in ("torch.compile", "vllm", "sglang") and baselines.get(n).version]
FUNCTIONS = [(name, operator) for name in LIBRARIES for operator in baselines.get(name).functions]
JUDGED = [
    ("torch", "rms_norm"), ("torch.compile", "rms_norm"), ("torch.compile", "gated_delta_rule_update"),
    ("fla", "l2_norm"), ("liger", "rms_norm"), ("quack", "rms_norm"), ("flashinfer", "rms_norm"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operator"), FUNCTIONS, ids=[f"{name}-{op}" for name, op in FUNCTIONS])
def test_a_function_agrees_with_the_reference(name, operator):
    problem, device, baseline = SUITE.problem(operator), torch.device("cuda:0"), baselines.get(name)
    shapes = [s for s in chosen_shapes(problem, device) if not baseline.lacks(problem, s)]
    shape = min(shapes, key=lambda s: problem.work(s).total_bytes)
    case = Case(problem, shape, shape.id, problem.make_inputs(shape, 7, device))
    try:
        with torch.no_grad():
            found = check_case(as_check(baseline, operator, PYTORCH), case)
    except Unsupported as why:
        pytest.skip(str(why))
    assert found["verdict"] == AGREES, found


@pytest.mark.parametrize(("name", "operator"), JUDGED, ids=[f"{name}-{op}" for name, op in JUDGED])
def test_a_baseline_passes_the_gate(name, operator, tmp_path):
    if baselines.get(name).version is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [
            sys.executable, "-m", "atrex.cli.main", "baseline", name, "--problem", operator, "--shapes", "0", "--quick",
            "--device", "cuda:0", "--out", str(tmp_path / "run"),
        ],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in (tmp_path / "run" / "units.jsonl").read_text().splitlines()]
    assert record["verdict"]["status"] == "passed", record["verdict"]
    assert record["dsl"] == "none" and record["adoption"] is None
    assert record["baseline"]["name"] == name and record["baseline"]["kernels"]
