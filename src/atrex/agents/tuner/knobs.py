"""Knobs of a kernel, found in its source and set there: `UNROLL: Literal[1, 2, 4, 8] = 4` at module level is one.

The annotation is the search space and the value the default, so a file with knobs is a plain candidate as it stands.
What else uses a constant (a launch, a `#define` in front of C++ source) follows from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from atrex.errors import UserError

Value = int | float | str | bool
Values = dict[str, Value]


@dataclass(frozen=True)
class Knob:
    """A constant with the values that it may take, in the order of the source; `value` is the one it has."""

    name: str
    options: tuple[Value, ...]
    value: Value


def find(source: str, where: str = "candidate") -> tuple[Knob, ...]:
    """The knobs of a source, in its order. Raises UserError for source that is not Python and for a broken knob."""
    tree = _parse(source, where)
    return tuple(_knob(node, tree, where) for node in _nodes(tree))


def values(knobs: tuple[Knob, ...]) -> Values:
    """The values that the knobs have."""
    return {knob.name: knob.value for knob in knobs}


def render(source: str, chosen: Mapping[str, Value], where: str = "candidate", plain: bool = False) -> str:
    """The source with knobs set; those not in `chosen` stay. `plain` leaves constants without their search space.

    Everything else keeps its text. Raises UserError for a name that is no knob and a value outside of its space.
    """
    tree = _parse(source, where)
    nodes = {node.target.id: node for node in _nodes(tree)}
    edits: list[tuple[int, int, bytes]] = []
    text = _Text(source)
    for name, value in chosen.items():
        if name not in nodes:
            raise UserError(f"{where}: {name} is no knob; expected one of {', '.join(nodes) or 'none'}")
        knob = _knob(nodes[name], tree, where)
        if not _among(value, knob.options):
            raise UserError(f"{where}: {name} = {value!r}; expected one of {', '.join(map(repr, knob.options))}")
    for name, node in nodes.items():
        value = chosen.get(name, _knob(node, tree, where).value)
        if plain:
            edits.append((*text.span(node), f"{name} = {value!r}".encode()))
        elif name in chosen:
            edits.append((*text.span(node.value), repr(value).encode()))
    if plain:
        edits += _unimport(tree, list(nodes.values()), text)
    return text.edited(edits)


# -- the syntax tree ---------------------------------------------------------------------------------------------------


def _parse(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(f"{where}{f':{line}' if line else ''}: not Python ({getattr(error, 'msg', error)})") from None


def _nodes(tree: ast.Module) -> Iterator[ast.AnnAssign]:
    names = _names_of_literal(tree)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            annotation = node.annotation
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in names:
                yield node


def _names_of_literal(tree: ast.Module) -> set[str]:
    """What `typing.Literal` is called in a module."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            names |= {each.asname or each.name for each in node.names if each.name == "Literal"}
        elif isinstance(node, ast.Import):
            names |= {f"{each.asname or each.name}.Literal" for each in node.names if each.name == "typing"}
    return names


def _knob(node: ast.AnnAssign, tree: ast.Module, where: str) -> Knob:
    name, at = node.target.id, f"{where}:{node.lineno}"
    space = node.annotation.slice
    options = tuple(_value(each, name, at) for each in (space.elts if isinstance(space, ast.Tuple) else [space]))
    value = _value(node.value, name, at)
    if not _among(value, options):
        raise UserError(f"{at}: {name} = {value!r}; expected one of its own {', '.join(map(repr, options))}")
    for other in tree.body:
        if other is not node and name in _assigned(other):
            raise UserError(f"{where}:{other.lineno}: {name} is assigned again; a knob has one value")
    return Knob(name, tuple(dict.fromkeys(options)), value)


def _value(node: ast.expr, name: str, at: str) -> Value:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    if not isinstance(value, int | float | str):
        raise UserError(f"{at}: {name}: {ast.unparse(node)}; expected a number, a string, True or False")
    return value


def _among(value: Value, options: tuple[Value, ...]) -> bool:
    return any(type(value) is type(each) and value == each for each in options)


def _assigned(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    else:
        return set()
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _unimport(tree: ast.Module, knobs: list[ast.AnnAssign], text: _Text) -> list[tuple[int, int, bytes]]:
    """Edits that take `Literal` out of `from typing import ...` where only the knobs used it."""
    inside = {id(each) for node in knobs for each in ast.walk(node.annotation)}
    used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and id(each) not in inside}
    edits = []
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module != "typing":
            continue
        kept = [each for each in node.names if each.name != "Literal" or (each.asname or each.name) in used]
        if not kept:
            edits.append((*text.lines(node), b""))
        elif len(kept) < len(node.names):
            names = ", ".join(each.name + (f" as {each.asname}" if each.asname else "") for each in kept)
            edits.append((*text.span(node), f"from typing import {names}".encode()))
    return edits


class _Text:
    """A source as the bytes that the columns of a syntax tree count."""

    def __init__(self, source: str):
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def lines(self, node: ast.AST) -> tuple[int, int]:
        return self._starts[node.lineno - 1], min(self._starts[node.end_lineno], len(self._data))

    def edited(self, edits: list[tuple[int, int, bytes]]) -> str:
        data = self._data
        for start, end, new in sorted(edits, reverse=True):
            data = data[:start] + new + data[end:]
        return data.decode()
