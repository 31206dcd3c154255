"""What an edit is about: facts of two sources' syntax trees, and rules for the category that a changed fact means.

Python is read as a syntax tree, C++ in string constants as tokens. A diff between what a plan says and what its edit is
gets a warning, nothing more: rules can be wrong.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
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
_POINTER = re.compile(r"(ptrs?|desc|descriptor)$")
_CPP_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_CPP_KERNEL = re.compile(r"__global__(?:[^;{(]{0,200}\b__launch_bounds__\s*\([^)]*\))?[^;{(]{0,200}\(([^)]*)\)")
_CPP_DIM3 = re.compile(r"\bdim3\s+([^;]+);")
_CPP_SHARED = re.compile(r"__shared__\s[^;=()\[]{0,200}?\w+\s*((?:\[[^\]]*\]\s*)+)[;,=]")
_CPP_TWO_INDICES = re.compile(r"\[([^\[\]]+)\]\s*(?=\[([^\[\]]+)\])")
_CPP_XOR_INDEX = re.compile(r"\[[^\[\]]*\^\s*([^\[\]]*)\]")
_CPP_DECLARED = re.compile(
    r"\b(?:void|bool|char|short|int|long|unsigned|float|double|half2?|auto|dim3|typename|class|\w+_t|__nv_\w+|[A-Z]\w*)"
    r"(?:\s+const\b)?(?:\s+|\s*[*&]+\s*)([A-Za-z]\w*)\s*(?=[=;,)\[({:])"
)
_ORDER = "order of indices"
_JIT_OF_HOST = ("cute", "cutlass", "flyc", "flydsl", "fx")
_ONCE_MORE = 0.25
_MOST_BUFFERS = 8
"""A first extent of shared memory up to this is taken for a number of buffers."""


@dataclass(frozen=True)
class Edit:
    """The category that most of an edit speaks for, None for an edit that no rule knows; scores by category."""

    category: str | None
    scores: dict[str, float]


def classify(before: str, after: str) -> Edit:
    """What the edit from one candidate source to another is about.

    Sources that do not parse, and sources that differ only in comments, blanks or names of their own, change nothing.
    """
    trees = _parsed(before), _parsed(after)
    if None in trees:
        return Edit(None, {})
    try:
        if len({_skeleton(tree, _cpp_skeleton) for tree in trees}) == 1:
            return Edit(None, {})
        old, new = facts(before), facts(after)
    except RecursionError:  # an expression that the parser follows deeper than Python's own stack goes
        return Edit(None, {})
    changed: Counter[str] = Counter()
    both = {fact for fact, _ in old} & {fact for fact, _ in new}
    for fact, value in set(old) | set(new):
        if fact.startswith(_ORDER) and fact not in both:
            continue  # other indices, not the same ones in another order
        was, is_ = old[fact, value], new[fact, value]
        # What comes or goes says more than what is used once more or once less.
        changed[fact] += abs(is_ - was) * (_ONCE_MORE if was and is_ else 1)
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
    tree = _parsed(source)
    if tree is None:
        return found
    modules = _imported(tree)
    found.update(_of_kernels(tree))
    for node in ast.walk(tree):
        found.update(_of_python(node, modules))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_cpp(node.value):
            found.update(_of_cpp(node.value))
    return found


def _parsed(source: str) -> ast.Module | None:
    """The tree without docstrings, None for a source that does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return tree


def _imported(tree: ast.Module) -> set[str]:
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
    return {(name.asname or name.name).partition(".")[0] for each in imports for name in each.names}


def host_side(source: str) -> str:
    """What a candidate's source says beyond what is compiled of it: grids, arguments, dispatch by shape, flags.

    Alike for sources that differ in comments, blanks, names of their own, C++ sources in strings and device functions.
    A source that does not parse is its own host side.
    """
    tree = _parsed(source)
    if tree is None:
        return source
    try:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.If):
                node.body = [each for each in node.body if not _is_device(each)] or [ast.Pass()]
        return _skeleton(tree, lambda text: "")
    except RecursionError:
        return source


def _is_device(node: ast.stmt) -> bool:
    """Whether a function is compiled for the device: a kernel of any DSL, or what Triton and Gluon compile.

    `jit` of CuTe DSL and FlyDSL makes host functions, which launch.
    """
    if not isinstance(node, ast.FunctionDef):
        return False
    called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    names = [ast.unparse(each).split(".") for each in called]
    return any(name[-1] == "kernel" or (name[-1] == "jit" and name[0] not in _JIT_OF_HOST) for name in names)


def _skeleton(tree: ast.Module, of_cpp: Callable[[str], str]) -> str:
    """The source with its own names numbered in the order in which they occur: alike where only names differ."""
    nodes = list(ast.walk(tree))
    own = {each.arg for each in nodes if isinstance(each, ast.arg)}
    own |= {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    own |= {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    numbers: dict[str, str] = {}
    for node in nodes:
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in own and not isinstance(node, ast.alias):
                setattr(node, field, numbers.setdefault(name, f"_{len(numbers)}"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_cpp(node.value):
            node.value = of_cpp(node.value)
    return ast.dump(tree)


def _cpp_skeleton(text: str) -> str:
    text = _CPP_COMMENT.sub(" ", text)
    own = set(_CPP_DECLARED.findall(text))
    numbers: dict[str, str] = {}
    tokens = _CPP_TOKEN.findall(text)
    return " ".join(numbers.setdefault(each, f"_{len(numbers)}") if each in own else each for each in tokens)


def _of_kernels(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What is said of a module's Python kernels together: how many run, on how many arrays, over what grids."""
    nodes = list(ast.walk(tree))
    launches = [each.func for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Subscript)]
    launched = {each.value.id for each in launches if isinstance(each.value, ast.Name)}
    if not launched:
        return
    yield "kernels launched", str(len(launched))
    kernels = [each for each in nodes if isinstance(each, ast.FunctionDef) and each.name in launched]
    names = [argument.arg for kernel in kernels for argument in kernel.args.args]
    yield "kernel arrays", str(sum(bool(_POINTER.search(name)) for name in names))
    for grid in {each.slice.id for each in launches if isinstance(each.slice, ast.Name)}:
        for node in nodes:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == grid for t in node.targets):
                yield "grid", ast.unparse(node.value)
    inside = [each for kernel in kernels for each in ast.walk(kernel)]
    yield "tile rank", str(max((_axes(each) for each in inside if isinstance(each, ast.Subscript)), default=1))
    for loop in (each for each in inside if isinstance(each, ast.For)):
        yield from (("load ahead", "") for _ in range(_rotated(loop)))


def _axes(node: ast.Subscript) -> int:
    """The axes that an index such as [:, None] spreads a tensor over, 1 for any other index."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    return len(parts) if any(isinstance(each, ast.Constant) and each.value is None for each in parts) else 1


def _rotated(loop: ast.For) -> int:
    """How many values a round of the loop loads and hands to the next round under another name."""
    pairs = []
    for node in loop.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            pairs += _pairs(node.targets[0], node.value)
    calls = [(to, call) for to, value in pairs for call in ast.walk(value) if isinstance(call, ast.Call)]
    loaded = {ast.unparse(to) for to, call in calls if (_dotted(call.func) or "").endswith("load")}
    return sum(isinstance(value, ast.Name) and value.id in loaded for _, value in pairs)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _of_python(node: ast.AST, modules: set[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for to, value in _pairs(target, node.value):
                if isinstance(to, ast.Name) and _is_number(value):
                    yield f"const {to.id}", ast.unparse(value)
    elif isinstance(node, ast.FunctionDef):
        for argument, default in zip(reversed(node.args.args), reversed(node.args.defaults), strict=False):
            yield f"const {argument.arg}", ast.unparse(default)
    elif isinstance(node, ast.Call):
        callee = _dotted(node.func, modules)
        if isinstance(node.func, ast.Subscript):  # kernel[grid](...)
            callee = "launch"
            if not isinstance(node.func.slice, ast.Name):
                yield "grid", ast.unparse(node.func.slice)
        elif callee:
            yield f"call {callee}", ""
            yield f"arity {callee}", str(len(node.args))
            if callee.endswith("program_id") and [ast.unparse(each) for each in node.args] == ["2"]:
                yield "third grid axis", ""
        for keyword in node.keywords:
            if keyword.arg:
                yield f"argument {callee or '?'} {keyword.arg}", ast.unparse(keyword.value)
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node, modules)
        if dotted:
            yield f"name {dotted}", ""
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield f"argument config {key.value}", ast.unparse(value)


def _of_cpp(text: str) -> Iterator[tuple[str, str]]:
    text = _CPP_COMMENT.sub(" ", text)
    for line in re.findall(r"^\s*#\s*pragma\s+(.+)$", text, re.M):
        yield f"pragma {line.strip()}", ""
    for define, value, name, given in _CPP_CONSTANT.findall(text):
        yield f"const {define or name}", (value or given).strip()
    if launched := set(_CPP_LAUNCH.findall(text)):
        yield "kernels launched", str(len(launched))
        yield "kernel arrays", str(sum(each.count("*") for each in _CPP_KERNEL.findall(text)))
    for arguments in [*_LAUNCH_ARGUMENTS.findall(text), *_CPP_DIM3.findall(text)]:
        yield "grid", " ".join(arguments.split())
    for array in _CPP_SHARED.findall(text):
        extents = [each.strip() for each in re.findall(r"\[([^\]]*)\]", array)]
        if len(extents) > 1 and extents[0].isdigit() and int(extents[0]) <= _MOST_BUFFERS:
            yield "shared buffers", extents[0]
        if len(extents) > 1 and (padding := re.search(r"\+\s*(\w+)$", extents[-1])):
            yield "shared padding", padding[1]
    for first, second in _CPP_TWO_INDICES.findall(text):
        a, b = "".join(first.split()), "".join(second.split())
        if a != b:
            yield f"{_ORDER} {min(a, b)} {max(a, b)}", a
    if re.search(r"\bblockIdx\s*\.\s*z\b", text):
        yield "third grid axis", ""
    for by in _CPP_XOR_INDEX.findall(text):
        yield "buffer flipped" if by.strip() == "1" else "index swizzled", ""
    tokens = _CPP_TOKEN.findall(text)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token[0].isalpha() or token[0] == "_":
            yield f"{'call' if following == '(' else 'name'} {token.rpartition('::')[2]}", ""


def _is_number(node: ast.expr) -> bool:
    return not any(isinstance(each, ast.Call | ast.Attribute) for each in ast.walk(node)) and any(
        isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in ast.walk(node)
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_cpp(text: str) -> bool:
    return "\n" in text and ";" in text and ("{" in text or "#" in text)


def _dotted(node: ast.expr, modules: set[str] | None = None) -> str | None:
    """A dotted name; given what is imported, without the variable that a method or a field is of."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id if modules is None or not parts or node.id in modules else "")
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
