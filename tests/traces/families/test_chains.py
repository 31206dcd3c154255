"""Chains of tokens along a stream."""

import re

import pytest

from atrex.traces.families.chains import Chain, ChainMatcher

TOKENS = {name: re.compile(name) for name in ("pow", "mean", "add", "mul", "copy")}


def found(expression, sequence, free=lambda i: True):
    matcher = ChainMatcher(TOKENS, [Chain("f", expression, "r")], ("gemm",))
    return [i for i, _ in matcher.find(sequence, free)]


def test_a_chain_with_optional_members():
    assert found("copy? pow mean mul", ["mul", "pow", "mean", "mul", "copy", "pow", "mean", "mul"]) == list(range(1, 8))


def test_only_the_part_in_parentheses_is_meant():
    assert found("gemm (add) copy? pow", ["gemm", "add", "copy", "pow", "add"]) == [1]


def test_kernels_that_are_known_otherwise_are_left():
    assert found("pow mean mul", ["pow", "mean", "mul"], free=lambda i: i != 1) == [0, 2]


def test_a_kernel_between_breaks_a_chain():
    assert found("pow mean mul", ["pow", "", "mean", "mul"]) == []


def test_alternatives():
    assert found("pow|mean add", ["mean", "add", "pow", "add", "mul", "add"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("expression", ["unknown", "pow(", "pow mean!"])
def test_expressions_that_make_no_sense_are_refused(expression):
    with pytest.raises(ValueError):
        found(expression, [])
