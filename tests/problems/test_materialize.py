import pytest
import torch

from atrex.errors import UserError
from atrex.problems import load_problem
from atrex.problems.model import named_outputs
from atrex.problems.wrong import same_tensors


def test_seed_decides_the_values(suite):
    problem = suite.problem("paged_attention_decode")
    shape = problem.shape("5")
    first, again, other = (problem.make_inputs(shape, seed, "cpu") for seed in (3, 3, 4))
    assert same_tensors(first, again) and not same_tensors(first, other)


def test_caller_keeps_random_state_and_default_device(suite):
    problem = suite.problem("rms_norm")
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    problem.make_inputs(problem.shape("15"), 5, "cpu")
    for make in problem.corner_cases(problem.shape("15"), 5, "cpu").values():
        make()
    assert torch.equal(torch.rand(3), expected)
    assert torch.empty(1).device.type == "cpu"


def test_corner_cases_are_lazy_and_seeded(suite):
    problem = suite.problem("silu_and_mul")
    cases = problem.corner_cases(problem.shape("0"), 5, "cpu")
    assert same_tensors(cases["ragged_tail"](), cases["ragged_tail"]())


def test_pinned_device_is_redirected(folder):
    path = folder / "input.py"
    path.write_text(
        "import torch\n"
        "def _make_inputs(token_count, hidden_size):\n"
        "    x = torch.randn(token_count, hidden_size, dtype=torch.bfloat16, device='cuda')\n"
        "    return {'x': x, 'weight': torch.ones(hidden_size, device=torch.device('cuda:3'), dtype=x.dtype)}\n"
    )
    problem = load_problem(folder)
    made = problem.make_inputs(problem.shape("1"), 0, "cpu")
    assert made["x"].device.type == "cpu" and made["x"].shape == (40, 128)
    assert problem.corner_cases(problem.shape("1"), 0, "cpu") == {}


def test_failing_input_function_is_one_line(folder):
    (folder / "input.py").write_text("def make_inputs(token_count):\n    return {}\n")
    problem = load_problem(folder)
    with pytest.raises(UserError, match="rms_norm/input.py: failed on shape 0: TypeError"):
        problem.make_inputs(problem.shape("0"), 0, "cpu")


def test_inputs_must_be_tensors(folder):
    (folder / "input.py").write_text("def make_inputs(**kwargs):\n    return {'x': 3}\n")
    problem = load_problem(folder)
    with pytest.raises(UserError, match="expected a dict of tensors"):
        problem.make_inputs(problem.shape("0"), 0, "cpu")


def test_fp8_inputs_are_exact_in_the_other_encoding(suite):
    problem = suite.problem("block_scaled_mm")
    shape = problem.shape("0")
    made = {fp8: problem.corner_cases(shape, 1, "cpu", fp8=fp8)["ragged_tail"]()["a"] for fp8 in ("e4m3fn", "e4m3fnuz")}
    assert made["e4m3fnuz"].dtype == torch.float8_e4m3fnuz
    assert torch.equal(made["e4m3fn"].float(), made["e4m3fnuz"].float())


def test_outputs_are_named():
    x, y = torch.ones(1), torch.zeros(1)
    assert named_outputs(x) == {"out": x}
    assert named_outputs({"a": x}) == {"a": x}
    assert named_outputs((x, y), ["q", "scale"]) == {"q": x, "scale": y}
    assert list(named_outputs((x, y))) == ["out0", "out1"]


@pytest.mark.parametrize("value", [None, 3, {}, {"out": 3}, [3]])
def test_outputs_that_are_no_tensors_are_refused(value):
    with pytest.raises(TypeError):
        named_outputs(value)
