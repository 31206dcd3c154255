"""Shapes with other arguments, drawn inputs and verdicts, for tests of single operators."""

from dataclasses import replace

from atrex.problems import load_suite
from atrex.problems.compare import compare, declared, oracle

SUITE = load_suite()


def shape_of(operator, init=None, /, **kwargs):
    """The first shape of an operator with other arguments."""
    first = SUITE.problem(operator).shape("0")
    return replace(
        first, init_kwargs={**first.init_kwargs, **(init or {})}, input_kwargs={**first.input_kwargs, **kwargs}
    )


def drawn(operator, shape, seed=1):
    return SUITE.problem(operator).make_inputs(shape, seed, "cpu")


def passes(operator, shape, inputs, outputs):
    problem = SUITE.problem(operator)
    case = oracle(problem, shape, inputs), declared(problem, shape, inputs)
    return compare(problem, shape, inputs, *case, outputs).passed


def forward(operator, shape, inputs):
    return declared(SUITE.problem(operator), shape, inputs)
