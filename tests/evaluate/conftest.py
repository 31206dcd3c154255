"""One judge's set-up for all tests of this folder, and a short way from source text to a record."""

from __future__ import annotations

import pytest

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import prepare
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite

HONEST = """
import torch
class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
    def forward(self, x, weight):
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps) * weight.float()).to(x.dtype)
"""


@pytest.fixture(scope="session")
def suite():
    return load_suite()


@pytest.fixture(scope="session")
def setup():
    made = prepare("cpu", Seeds(b"test secret"), 2, Budgets(compile=20, execution=2, performance=1), 20)
    yield made
    made.close()


@pytest.fixture
def judge(setup, suite, tmp_path):
    """judge(source, operator="rms_norm", shape="46", dsl="cpp") -> the unit's record."""

    def run(source, operator="rms_norm", shape="46", dsl="cpp", held_out=False):
        path = tmp_path / f"{operator}.py"
        path.write_text(source)
        problem = suite.problem(operator)
        candidate = Candidate(path, str(path), str(path), operator, source)
        return UnitJudge(setup, Unit(candidate, problem, problem.shape(shape), dsl, held_out)).run()

    return run
