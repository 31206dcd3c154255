"""Kernels and other symbols of a source file, through tree-sitter: names, lines, documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atrex.errors import UserError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

PYTHON = (".py",)
CPP = (".cu", ".cuh", ".hip", ".cpp", ".cc", ".hpp", ".h", ".inl")
# A decorator's last words -> the DSL whose kernel (or helper) the function is.
_DECORATORS = {
    "triton.jit": "triton", "triton.experimental.gluon.jit": "gluon", "gluon.jit": "gluon", "gluon_jit": "gluon",
    "cute.kernel": "cutedsl", "cute.jit": "cutedsl", "flyc.kernel": "flydsl", "flyc.jit": "flydsl",
    "flydsl.kernel": "flydsl", "tilelang.jit": "tilelang", "T.prim_func": "tilelang", "jit": "triton",
}  # fmt: skip
_HELPER = {"cute.jit", "flyc.jit"}  # called by kernels or launching them
_DOC_CHARACTERS, _SIGNATURE_CHARACTERS = 600, 300


@dataclass(frozen=True)
class Symbol:
    """One definition. `kind`: kernel, function or class; `dsl` of kernels and their helpers; lines count from 1."""

    name: str
    kind: str
    dsl: str | None
    path: str
    start: int
    end: int
    doc: str
    signature: str


@lru_cache(maxsize=2)
def _parser(language: str) -> Parser:
    try:
        from tree_sitter import Language, Parser

        if language == "python":
            import tree_sitter_python as grammar
        else:
            import tree_sitter_cuda as grammar
    except ImportError:
        raise UserError("indexing sources needs tree-sitter: pip install 'atrex[wiki]'") from None
    return Parser(Language(grammar.language()))


def symbols_in(path: str, text: bytes) -> list[Symbol]:
    """The symbols of one file, by its ending; [] for a file of another kind. What does not parse is left out."""
    if path.endswith(PYTHON):
        return list(_python(path, text))
    if path.endswith(CPP):
        return list(_cpp(path, text))
    return []


def _python(path: str, text: bytes) -> Iterator[Symbol]:
    bare_jit = "triton" if b"triton" in text else None
    for node in _walk(_parser("python").parse(text).root_node, ("function_definition", "class_definition")):
        name = _text(node.child_by_field_name("name"))
        outer = node.parent if node.parent is not None and node.parent.type == "decorated_definition" else node
        dsl, helper = None, False
        for decorator in (child for child in outer.children if child.type == "decorator"):
            called = re.sub(r"\(.*", "", _text(decorator).lstrip("@"), flags=re.S).strip()
            for known, its_dsl in _DECORATORS.items():
                if called == known or (known != "jit" and called.endswith(f".{known}")):
                    dsl = bare_jit if known == "jit" else its_dsl
                    helper = known in _HELPER
                    break
        kind = "class" if node.type == "class_definition" else "kernel" if dsl and not helper else "function"
        body = node.child_by_field_name("body")
        head = text[outer.start_byte : body.start_byte if body else node.end_byte].decode(errors="replace")
        doc, owner = _docstring(body), _class_around(outer)
        if owner is not None:
            name = f"{_text(owner.child_by_field_name('name'))}.{name}"
            if kind == "kernel":  # what a kernel written as a method does is said at its class
                doc = doc or _docstring(owner.child_by_field_name("body"))
        yield Symbol(
            name, kind, dsl, path, outer.start_point[0] + 1, node.end_point[0] + 1, doc,
            " ".join(head.split())[:_SIGNATURE_CHARACTERS],
        )  # fmt: skip


def _class_around(node: Node) -> Node | None:
    while node.parent is not None and node.parent.type != "class_definition":
        node = node.parent
    return node.parent


def _docstring(body: Node | None) -> str:
    first = body.named_children[0] if body is not None and body.named_children else None
    if first is not None and first.type == "expression_statement":
        first = first.named_children[0] if first.named_children else None
    if first is None or first.type != "string":
        return ""
    return re.sub(r"^[rbuRBU]*('''|\"\"\"|'|\")|('''|\"\"\"|'|\")$", "", _text(first)).strip()[:_DOC_CHARACTERS]


def _cpp(path: str, text: bytes) -> Iterator[Symbol]:
    hip = path.endswith(".hip") or re.search(rb'#\s*include\s*[<"](hip|ck|ck_tile)/', text) is not None
    nodes = _walk(_parser("cuda").parse(text).root_node, ("function_definition", "struct_specifier", "class_specifier"))
    for node in nodes:
        outer = node.parent if node.parent is not None and node.parent.type == "template_declaration" else node
        body = node.child_by_field_name("body")
        if body is None:
            continue
        if node.type == "function_definition":
            declarator = node.child_by_field_name("declarator")
            name_node = _declared(declarator)
            kind = "kernel" if any(child.type == "__global__" for child in node.children) else "function"
        else:
            name_node, kind = node.child_by_field_name("name"), "class"
        if name_node is None:
            continue
        head = text[outer.start_byte : body.start_byte].decode(errors="replace")
        kind = "kernel" if kind == "function" and re.search(r"\b__global__\b|\bCUTLASS_GLOBAL\b", head) else kind
        yield Symbol(
            _text(name_node), kind, ("hip" if hip else "cuda") if kind == "kernel" else None, path,
            outer.start_point[0] + 1, node.end_point[0] + 1, _comment_above(outer),
            " ".join(head.split())[:_SIGNATURE_CHARACTERS],
        )  # fmt: skip


def _declared(node: Node | None) -> Node | None:
    """The name inside a declarator: through pointers and references, of the function itself."""
    while node is not None and node.type not in ("identifier", "field_identifier", "qualified_identifier"):
        inner = node.child_by_field_name("declarator")
        node = inner if inner is not None else next(
            (child for child in node.named_children if child.type.endswith("declarator")), None
        )  # fmt: skip
    return node


def _comment_above(node: Node) -> str:
    lines: list[str] = []
    before, row = node.prev_sibling, node.start_point[0]
    while before is not None and before.type == "comment" and before.end_point[0] >= row - 1:
        lines.insert(0, re.sub(r"^\s*(/\*+!?|//[/!]?<?|\*/?)|\*/$", "", _text(before), flags=re.M).strip())
        before, row = before.prev_sibling, before.start_point[0]
    return " ".join(" ".join(lines).split())[:_DOC_CHARACTERS]


def _walk(root: Node, types: tuple[str, ...]) -> Iterator[Node]:
    """Every node of the given types, in order of the text, without recursion: sources nest deeply."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in types:
            yield node
        stack.extend(reversed(node.children))


def _text(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode(errors="replace")
