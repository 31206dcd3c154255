"""Candidates of kernels/h200 on the suite's own inputs, against its references, by its comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import torch

from atrex.problems.compare import compare, declared, oracle
from atrex.problems.model import Shape, named_outputs
from tests.kernels import emulator
from tests.suite.cases import SUITE, drawn, shape_of


def judge(module: ModuleType, operator: str, shape: Shape, inputs=None, seed: int = 1, note: object = "") -> None:
    """The emulated candidate passes: on what the operator draws for the shape, or on `inputs`."""
    problem = SUITE.problem(operator)
    inputs = drawn(operator, shape, seed) if inputs is None else inputs
    exact, own = oracle(problem, shape, inputs), declared(problem, shape, inputs)
    taken = {name: copied(x) for name, x in inputs.items()}
    with emulator.stream(seed):
        got = module.Model(**shape.init_kwargs)(*taken.values())
    outputs = {} if got is None else named_outputs(got)
    # What an operator changes in place is an output, too.
    outputs |= {name: taken[name] for name in exact if name not in outputs}
    assert kinds(outputs) == kinds(own)
    assert all(same(inputs[name], taken[name]) for name in inputs if name not in exact), "an input was changed"
    found = compare(problem, shape, inputs, exact, own, outputs)
    assert found.passed, (operator, dict(shape.input_kwargs), note, found)


def judge_sizes(module: ModuleType, operator: str, init=None, /, seed: int = 1, **kwargs) -> None:
    """`judge` on the operator's first shape with other arguments."""
    judge(module, operator, shape_of(operator, init, **kwargs), seed=seed)


def judge_corners(module: ModuleType, operator: str, init=None, /, only=None, **kwargs) -> None:
    """`judge` on the operator's corner cases at these sizes, all of them or `only` some."""
    shape = shape_of(operator, init, **kwargs)
    cases = SUITE.problem(operator).corner_cases(shape, 1, "cpu")
    for name in only or cases:
        judge(module, operator, shape, cases[name](), note=name)


def choices(module: ModuleType, operator: str, asked: Callable, smaller: Callable) -> Iterator[Shape]:
    """Small shapes with the configurations of all published and held-out ones, each of which is in force meanwhile.

    asked(input arguments) are the arguments of `config`, smaller(input arguments, configuration) the sizes instead.
    """
    problem, config, seen = SUITE.problem(operator), module.config, set()
    for shape in [*problem.shapes.values(), *problem.held_out.values()]:
        choice = config(*asked(shape.input_kwargs))
        kwargs = {**shape.input_kwargs, **smaller(shape.input_kwargs, choice)}
        key = repr((choice, kwargs, shape.init_kwargs))
        if key not in seen:
            seen.add(key)
            module.config = lambda *_, choice=choice: choice
            yield replace(shape, input_kwargs=kwargs)
    module.config = config


def judge_choices(module: ModuleType, operator: str, asked: Callable, smaller: Callable) -> None:
    """`judge` with every configuration that some shape of the operator gets."""
    for shape in choices(module, operator, asked, smaller):
        judge(module, operator, shape, note=module.config())


def copied(x: torch.Tensor) -> torch.Tensor:
    """x elsewhere, with what lies between its elements."""
    flat = x.as_strided((x.untyped_storage().nbytes() // x.dtype.itemsize,), (1,), 0)
    return flat.clone().as_strided(x.shape, x.stride(), x.storage_offset())


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (a, b)))


def kinds(outputs: dict[str, torch.Tensor]) -> dict:
    return {name: (x.shape, x.dtype) for name, x in outputs.items()}
