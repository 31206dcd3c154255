"""What every adapter must hold, whether its library is here or not."""

from pathlib import Path

import pytest

from atrex import baselines
from atrex.errors import UserError
from atrex.evaluate.candidates import Candidate, static_fault
from atrex.problems.load import load_suite

SUITE = load_suite()
COVERED = [(name, op) for name in baselines.names() for op in SUITE.problems if baselines.get(name).has(op)]


@pytest.mark.parametrize(("name", "operator"), COVERED, ids=[f"{name}-{op}" for name, op in COVERED])
def test_the_text_fits_the_reference(name, operator):
    problem = SUITE.problem(operator)
    text = baselines.get(name).text(problem)
    shape = next(iter(problem.shapes.values()))
    candidate = Candidate(Path(f"{operator}.py"), operator, operator, operator, text)
    assert static_fault(candidate, type(problem.reference(shape)).forward, dict(shape.init_kwargs)) is None
    assert "atrex" not in text


@pytest.mark.parametrize("name", baselines.names())
def test_an_adapter_names_operators_of_the_suite_and_what_they_call(name):
    baseline = baselines.get(name)
    assert set(baseline.functions) <= set(SUITE.problems)
    assert baseline.versions and baseline.install.startswith("pip install ")
    assert all(baseline.origin(op).calls for op in SUITE.problems if baseline.has(op))


@pytest.mark.parametrize("name", baselines.names())
def test_what_is_lacked_can_be_said_of_every_shape(name):
    baseline = baselines.get(name)
    for problem in SUITE.problems.values():
        said = {baseline.lacks(problem, shape) for shape in problem.shapes.values()}
        assert all(why is None or isinstance(why, str) for why in said)
        assert None in said or not baseline.has(problem.operator), f"{name} has no shape of {problem.operator}"


def test_torch_and_its_compiler_have_every_operator():
    for name in ("torch", "torch.compile"):
        assert all(baselines.get(name).has(operator) for operator in SUITE.problems)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="torch.compile"):
        baselines.get("cudnn")


def test_what_needs_conversions_stands_for_no_production():
    vllm = baselines.get("vllm")
    assert vllm.origin("rms_norm").production
    assert not vllm.origin("fused_add_rms_norm").production


def test_a_patch_release_of_a_known_version_is_known():
    torch = baselines.get("torch")
    assert torch.knows("2.11.0+cu130") and not torch.knows("2.1") and not torch.knows("2.110.0")


def test_a_function_that_an_older_version_lacks_is_said(monkeypatch):
    flashinfer, problem = baselines.get("flashinfer"), SUITE.problem("block_scaled_mm")
    shape = next(iter(problem.shapes.values()))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.5.3")
    assert flashinfer.lacks(problem, shape) == "flashinfer-python has it since 0.7.4, this is 0.5.3"
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.10.0.post1")
    assert flashinfer.lacks(problem, shape) is None
