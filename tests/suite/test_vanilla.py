"""The plain Triton candidates: whole without a device, kernels of their own alone, and compiled for sm_90a."""

from __future__ import annotations

import ast
import functools

import pytest

from atrex import dsls
from atrex.evaluate.candidates import resolve, static_fault
from atrex.problems.load import load_suite
from tests.compile.one_process import ROOT, compile_here

FOLDER = ROOT / "results" / "vanilla" / "triton"
FILES = sorted(path.stem for path in FOLDER.glob("*.py"))
# What torch may be asked for: memory, and what is known without a device.
PLAIN = {"torch.empty", "torch.empty_like", "torch.finfo", "torch.iinfo", "torch.nn.Module"}
WAITS = {"item", "tolist", "cpu", "numpy", "nonzero", "synchronize"}
LAUNCHES = {"contiguous", "clone", "zero_", "fill_", "copy_"}


@functools.cache
def suite():
    return load_suite()


def candidate(operator):
    (found,) = resolve([str(FOLDER / f"{operator}.py")], list(suite().problems), None)
    return found


def calls(source):
    """Dotted names that are called, outside of kernels."""
    tree = ast.parse(source)
    host = [n for n in tree.body if not (isinstance(n, ast.FunctionDef) and n.decorator_list)]
    found = (ast.unparse(n.func) for part in host for n in ast.walk(part) if isinstance(n, ast.Call))
    return set(found)


@pytest.mark.parametrize("operator", FILES)
def test_a_file_takes_the_reference_s_operands_in_triton(operator):
    problem = suite().problem(operator)
    here = candidate(operator)
    shape = next(iter(problem.shapes.values()))
    forward = type(problem.reference(shape)).forward
    assert static_fault(here, forward, dict(shape.init_kwargs)) is None
    assert dsls.infer(here.source) == "triton"


@pytest.mark.parametrize("operator", FILES)
def test_a_file_computes_nothing_in_torch_and_waits_for_nothing(operator):
    called = calls(candidate(operator).source)
    assert {name for name in called if name.startswith("torch.")} <= PLAIN
    assert not {name.rsplit(".", 1)[-1] for name in called} & (WAITS | LAUNCHES)


@pytest.mark.slow
@pytest.mark.parametrize("operator", FILES)
def test_a_file_compiles_for_hopper_at_its_first_middle_and_last_shape(operator):
    pytest.importorskip("triton", reason="pip install 'atrex[triton]'")
    ids = list(suite().problem(operator).shapes)
    shapes = sorted({ids[0], ids[len(ids) // 2], ids[-1]}, key=ids.index)
    source = candidate(operator).source
    asked = {"source": source, "dsl": "triton", "target": "sm_90a", "operator": operator, "shapes": shapes}
    found = compile_here({operator: asked})[operator]["shapes"]
    assert {key: (o["status"], o["reason"]) for key, o in found.items()} == dict.fromkeys(shapes, ("compiled", ""))
    assert all({a["kind"] for a in o["artifacts"]} == {"cubin"} for o in found.values())
