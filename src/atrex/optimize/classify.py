"""What an edit is about: facts of two sources' syntax trees, and rules for the category that a changed fact means.

Python is read as a syntax tree, C++ in string constants as tokens. A diff between what a plan says and what its edit is
gets a warning, nothing more: rules can be wrong.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from atrex.optimize.model import CATEGORIES

Facts = Counter[tuple[str, str]]
"""(fact, value) -> how often; the value is "" where only the fact counts."""

_CPP_TOKEN = re.compile(r"[A-Za-z_][\w]*(?:::[A-Za-z_]\w*)*|\d[\w.]*|\S")
_CPP_CONSTANT = re.compile(r"(?:#define\s+(\w+)\s+(.+)|\bconstexpr\b[^=;()]*?\b(\w+)\s*=\s*([^;]+);)")
_CPP_LAUNCH = re.compile(r"\b(\w+)(?:<[^<>;]*>)?\s*<<<")
_LAUNCH_ARGUMENTS = re.compile(r"<<<(.+?)>>>", re.S)
_KERNEL_MARKS = ("jit", "kernel", "autotune")


@dataclass(frozen=True)
class Edit:
    """The category that most of an edit speaks for, None for an edit that no rule knows; scores by category."""

    category: str | None
    scores: dict[str, float]


def classify(before: str, after: str) -> Edit:
    """What the edit from one candidate source to another is about. Sources that do not parse change nothing."""
    old, new = facts(before), facts(after)
    changed: Counter[str] = Counter()
    for fact, value in set(old) | set(new):
        changed[fact] += abs(new[fact, value] - old[fact, value])
    scores = dict.fromkeys(CATEGORIES, 0.0)
    for fact, times in changed.items():
        for category, patterns in _rules().items():
            weights = [weight for pattern, weight in patterns if pattern.search(fact)]
            if weights and times:
                scores[category] += max(weights) * min(times, 4) ** 0.5
    best = max(scores, key=scores.get)
    return Edit(best if scores[best] > 0 else None, {name: round(s, 3) for name, s in scores.items() if s})


def facts(source: str) -> Facts:
    """The facts of a candidate source."""
    found: Facts = Counter()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    for node in ast.walk(tree):
        found.update(_of_python(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_cpp(node.value):
            found.update(_of_cpp(node.value))
    return found


def _of_python(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and _is_number(node.value):
                yield f"const {target.id}", ast.unparse(node.value)
    elif isinstance(node, ast.FunctionDef):
        if any(mark in ast.unparse(each) for each in node.decorator_list for mark in _KERNEL_MARKS):
            yield "kernel", "defined"
        for argument, default in zip(reversed(node.args.args), reversed(node.args.defaults), strict=False):
            yield f"const {argument.arg}", ast.unparse(default)
    elif isinstance(node, ast.Call):
        callee = _dotted(node.func)
        if isinstance(node.func, ast.Subscript):  # kernel[grid](...)
            callee = "launch"
            yield "kernel", "launched"
            yield "grid", ast.unparse(node.func.slice)
        elif callee:
            yield f"call {callee}", ""
        for keyword in node.keywords:
            if keyword.arg:
                yield f"argument {callee or '?'} {keyword.arg}", ast.unparse(keyword.value)
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        if dotted:
            yield f"name {dotted}", ""
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield f"argument config {key.value}", ast.unparse(value)


def _of_cpp(text: str) -> Iterator[tuple[str, str]]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    for line in re.findall(r"^\s*#\s*pragma\s+(.+)$", text, re.M):
        yield f"pragma {line.strip()}", ""
    for define, value, name, given in _CPP_CONSTANT.findall(text):
        yield f"const {define or name}", (value or given).strip()
    for _ in _CPP_LAUNCH.findall(text):
        yield "kernel", "launched"
    for arguments in _LAUNCH_ARGUMENTS.findall(text):
        yield "grid", " ".join(arguments.split())
    for _ in range(text.count("__global__")):
        yield "kernel", "defined"
    tokens = _CPP_TOKEN.findall(text)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token[0].isalpha() or token[0] == "_":
            yield f"{'call' if following == '(' else 'name'} {token}", ""


def _is_number(node: ast.expr) -> bool:
    return not any(isinstance(each, ast.Call | ast.Attribute) for each in ast.walk(node)) and any(
        isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in ast.walk(node)
    )


def _is_cpp(text: str) -> bool:
    return "\n" in text and ";" in text and ("{" in text or "#" in text)


def _dotted(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif not parts:
        return None
    return ".".join(reversed(parts))


@cache
def _rules() -> dict[str, list[tuple[re.Pattern[str], float]]]:
    import yaml

    text = files("atrex.optimize").joinpath("data", "edits.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    if set(data) != set(CATEGORIES):
        raise ValueError(f"edits.yaml: expected rules for {', '.join(CATEGORIES)}")
    return {
        category: [(re.compile(rule["match"]), float(rule.get("weight", 1))) for rule in rules]
        for category, rules in data.items()
    }
