"""From a Model in an adapter file to the text of a candidate: the class, and what it names of its file, alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_FUTURE = "from __future__ import annotations"


def candidate_text(module: str, name: str, about: str) -> str:
    """The text of class `name` in the source `module` as a candidate, `about` first, the class called Model.

    It takes along the imports, constants, functions and classes of the module that it needs, and leaves its decorators.
    Raises ValueError if there is no such class.
    """
    tree = ast.parse(module)
    bound = {each: node for node in tree.body for each in _bound(node)}
    if not isinstance(bound.get(name), ast.ClassDef):
        raise ValueError(f"no class {name} in the module")
    needed: set[ast.stmt] = set()
    todo = [name]
    while todo:
        node = bound.get(todo.pop())
        if node is not None and node not in needed:
            needed.add(node)
            todo += _used(node)
    lines = module.splitlines()
    parts = [about, _FUTURE]
    for node in tree.body:
        if node in needed:
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if isinstance(node, ast.ClassDef) and node.name == name:
                text = text.replace(f"class {name}", "class Model", 1)
            gap = "\n\n" if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else ""
            parts.append(f"{gap}{_decorated(node, lines)}{text}")
    return "\n".join(parts) + "\n"


def _decorated(node: ast.stmt, lines: list[str]) -> str:
    """A helper's decorators, such as functools.cache; a class's only registers it."""
    if not isinstance(node, ast.FunctionDef):
        return ""
    return "".join(f"{line}\n" for d in node.decorator_list for line in lines[d.lineno - 1 : d.end_lineno])


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _used(node: ast.stmt) -> list[str]:
    skipped = {d for d in node.decorator_list} if isinstance(node, ast.ClassDef) else set()
    children = [child for child in ast.iter_child_nodes(node) if child not in skipped]
    return [n.id for child in children for n in ast.walk(child) if isinstance(n, ast.Name)]
