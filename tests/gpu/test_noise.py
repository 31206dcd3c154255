"""A second process on the device: the units that it disturbs are flagged."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest
import torch

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite
from tests.gpu.test_judge import EXAMPLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = [str(i) for i in range(10)]
# Half a second of matrix products, half a second of copies, without end.
BURNER = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
b = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
c = torch.empty_like(b)
print("on", flush=True)
while True:
    for work in (lambda: a @ a, lambda: c.copy_(b)):
        end = time.time() + 0.5
        while time.time() < end:
            for _ in range(20):
                work()
            torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def setup():
    from atrex.evaluate.setup import prepare

    made = prepare("cuda:0", Seeds(), 1, Budgets(compile=60, execution=3, performance=5))
    yield made
    made.close()


def judge(setup, monkeypatch):
    monkeypatch.setattr("atrex.evaluate.unit.CALM_SECONDS", 0.0)
    path = EXAMPLES / "triton" / "rms_norm.py"
    problem = load_suite().problem("rms_norm")
    records = []
    for shape in SHAPES:
        candidate = Candidate(path, str(path), str(path), "rms_norm", path.read_text())
        records.append(UnitJudge(setup, Unit(candidate, problem, problem.shape(shape), "triton")).run())
    return records


def test_at_least_95_percent_of_the_units_beside_a_burner_are_flagged_and_none_without_it(setup, monkeypatch):
    quiet = judge(setup, monkeypatch)
    assert [r.verdict.status for r in quiet] == ["passed"] * len(SHAPES)
    assert sum(r.performance.remeasured is not None for r in quiet) <= 1
    burner = subprocess.Popen([sys.executable, "-c", BURNER], stdout=subprocess.PIPE, text=True)
    try:
        assert burner.stdout.readline() == "on\n"
        time.sleep(1)
        disturbed = judge(setup, monkeypatch)
    finally:
        burner.kill()
        burner.wait()
    flagged = [r for r in disturbed if r.verdict.category == "unstable" or (r.performance and r.performance.remeasured)]
    print([(r.shape, r.verdict.category, r.performance and r.performance.sentinel) for r in disturbed])
    assert len(flagged) >= math.floor(0.95 * len(SHAPES))
