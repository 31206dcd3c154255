"""PyTorch's functions agree with the references; what serving updates in place is updated in place."""

import importlib.util

import pytest
import torch
from benchmarks.references.baseline_checks import as_check
from benchmarks.references.cases import chosen_shapes
from benchmarks.references.outcome import AGREES, check_case
from benchmarks.references.registry import PYTORCH, Case

from atrex import baselines
from atrex.problems.load import load_suite

CPU = torch.device("cpu")
SUITE = load_suite()
EAGER = baselines.get("torch")


def smallest(operator):
    problem = SUITE.problem(operator)
    return problem, min(chosen_shapes(problem, CPU), key=lambda s: problem.work(s).total_bytes)


@pytest.mark.parametrize("operator", sorted(EAGER.functions))
def test_an_eager_form_agrees_on_the_smallest_shape_and_its_corner_cases(operator):
    problem, shape = smallest(operator)
    made = {"seed": lambda: problem.make_inputs(shape, 7, CPU)} | problem.corner_cases(shape, 7, CPU)
    for name, make in made.items():
        found = check_case(as_check(EAGER, operator, PYTORCH), Case(problem, shape, f"{shape.id}/{name}", make()))
        assert found["verdict"] == AGREES, found


def model_of(text, tmp_path, init):
    path = tmp_path / "candidate.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("candidate_of_baseline", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(**init).eval()


@pytest.mark.parametrize("operator", ["gated_delta_rule_update", "reshape_and_cache", "chunk_gated_delta_rule_state"])
def test_the_plain_reference_updates_in_place_what_serving_does(operator, tmp_path):
    from atrex.baselines.reference_text import reference_text

    problem, shape = smallest(operator)
    inputs = problem.make_inputs(shape, 7, CPU)
    expected = problem.reference(shape)(*(t.clone() for t in inputs.values()))
    model = model_of(reference_text(problem, "Plain.", compiled=False), tmp_path, shape.init_kwargs)
    returned = model(*inputs.values())
    for name in problem.metadata.mutates:
        assert torch.equal(inputs[name], expected[name])
    others = [name for name in problem.metadata.outputs if name not in problem.metadata.mutates]
    if len(others) > 1:
        assert sorted(returned) == sorted(others)
    else:
        assert (returned is None) if not others else torch.equal(returned, expected[others[0]])


def test_an_optional_operand_may_be_left_out(tmp_path):
    from atrex.baselines.reference_text import reference_text

    problem = SUITE.problem("fused_qkv_rope")
    shape = next(s for s in problem.shapes.values() if "qkv_bias" not in problem.make_inputs(s, 1, CPU))
    model = model_of(reference_text(problem, "Plain.", compiled=False), tmp_path, shape.init_kwargs)
    inputs = problem.make_inputs(shape, 7, CPU)
    assert set(model(*inputs.values())) == {"q", "k", "v"}


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["rms_norm", "causal_conv1d"])
def test_torch_compile_compiles_the_reference_and_agrees(operator, tmp_path):
    from torch._dynamo.utils import counters

    problem, shape = smallest(operator)
    inputs = problem.make_inputs(shape, 7, CPU)
    expected = problem.reference(shape)(*(t.clone() for t in inputs.values()))
    expected = expected if isinstance(expected, dict) else {"out": expected}
    model = model_of(baselines.get("torch.compile").text(problem), tmp_path, shape.init_kwargs)
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        out = model(*inputs.values())
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"]
    torch.testing.assert_close(out, expected["out"], rtol=2e-2, atol=1e-2)
    for name in problem.metadata.mutates:
        assert torch.equal(inputs[name], expected[name])
