"""What the judge does to operands between timed calls leaves every operator well defined."""

from __future__ import annotations

import pytest
import torch

from atrex.evaluate.bindings import Refresher
from atrex.evaluate.budgets import CPU_LIMIT
from atrex.evaluate.correctness import expected
from atrex.problems.compare import compare
from atrex.problems.load import load_suite

SUITE = load_suite()
STEPS = 60  # pilot, timed calls and batches of one unit


def smallest(problem):
    fitting = [s for s in problem.shapes.values() if CPU_LIMIT.fits(problem.work(s))]
    return min(fitting, key=lambda s: problem.work(s).total_flops + problem.work(s).bytes_read)


@pytest.mark.parametrize("operator", sorted(SUITE.problems))
def test_the_reference_still_agrees_with_its_oracle(operator):
    problem = SUITE.problem(operator)
    shape, fp8 = smallest(problem), "e4m3fn"
    inputs = problem.make_inputs(shape, 5, torch.device("cpu"), fp8)
    refresher = Refresher(inputs, 7, problem.metadata.structured)
    for _ in range(STEPS):
        refresher.step()
    case = expected(problem, shape, "refreshed", refresher.inputs, fp8)
    result = compare(problem, shape, case.inputs, case.oracle, case.declared, case.declared)
    assert result.passed, result
    floats = [t.double() for t in case.declared.values() if t.is_floating_point()]
    assert all(torch.isfinite(t[~torch.isinf(t)]).all() for t in floats)


@pytest.mark.parametrize("operator", ["chunk_gated_delta_rule_state", "chunk_delta_rule_output"])
def test_running_sums_stay_as_they_are(operator):
    problem = SUITE.problem(operator)
    shape = smallest(problem)
    inputs = problem.make_inputs(shape, 5, torch.device("cpu"), "e4m3fn")
    refresher = Refresher(inputs, 7, problem.metadata.structured)
    refresher.step()
    moved = {name for name in inputs if not torch.equal(refresher.inputs[name], inputs[name].contiguous())}
    assert "g" not in moved and "k" in moved
