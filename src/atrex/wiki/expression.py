"""Small expressions in the rules' data: arithmetic and comparisons over named numbers, nothing else."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

_BINARY: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARE: dict[type, Callable] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable] = {"min": min, "max": max, "ceil": math.ceil}


class Unknown(Exception):
    """A name without a value; its name is the message."""


def names_in(text: str) -> set[str]:
    """The names that an expression needs. Raises ValueError for what is no expression of this form."""
    tree = ast.parse(text, mode="eval")
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - called


def evaluate(text: str, values: Mapping[str, float]) -> float:
    """The value of an expression. Raises Unknown for a name without a value, ValueError for any other construct.

    Division by zero gives 0: a share of nothing.
    """
    return _value(ast.parse(text, mode="eval").body, values)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            if name not in values:
                raise Unknown(name)
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, values)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            a, b = _value(left, values), _value(right, values)
            return 0.0 if isinstance(op, ast.Div) and b == 0 else _BINARY[type(op)](a, b)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_value(left, values), _value(right, values))
        case ast.BoolOp(op=op, values=parts):
            results = [_value(part, values) for part in parts]
            return all(results) if isinstance(op, ast.And) else any(results)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise ValueError(f"{ast.unparse(node)}: expected arithmetic, comparisons, min, max or ceil of names and numbers")
