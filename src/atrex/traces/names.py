"""Device kernel names taken apart: qualified name and template arguments, from demangled or mangled C++ and plain
names.

The reader of mangled names knows as much of the Itanium C++ ABI as kernel names use and stops where it does not know
further; the demanglers in use each fail on some of them (`DF16b`, `TnPFT_`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "{anonymous}", "_GLOBAL__N_1")
_CLEAN = re.compile(r"\s*\[clone [^\]]*\]|\.kd$|^\"|\"$")
_CAST = re.compile(r"^\((?:unsigned |signed )?(?:int|long|short|char|bool|long long|size_t)\)")
_SUFFIX = re.compile(r"^(-?\d+)(?:[uUlL]+)$")
_WORD = re.compile(r"^[A-Za-z_~][\w$]*$")


@dataclass(frozen=True)
class KernelName:
    """`base`: qualified name without template arguments, return type and parameters. `args`: its template arguments.

    Values among the arguments are written plainly: 8, true, false. `text` is the name made readable.
    """

    base: str
    args: tuple[str, ...]
    text: str

    @property
    def short(self) -> str:
        """The last component of the qualified name."""
        return self.base.rsplit("::", 1)[-1]


@lru_cache(maxsize=65536)
def parse(name: str) -> KernelName:
    """Take a kernel's name apart. Never raises: a name it cannot read is its own base."""
    text = name
    while (cleaned := _CLEAN.sub("", text.strip())) != text:
        text = cleaned
    if text.startswith(("_Z", "__Z")):
        found = _Mangled(text.lstrip("_").removeprefix("Z")).kernel()
        if found is not None:
            base, args = found
            return KernelName(base, args, base + (f"<{', '.join(args)}>" if args else ""))
        identifiers = re.findall(r"\d+([A-Za-z_]\w*)", text)
        return KernelName(identifiers[0] if identifiers else text, (), text)
    for spelling in _ANONYMOUS[:3]:
        text = text.replace(spelling + "::", "")
    return _demangled(text)


def _demangled(text: str) -> KernelName:
    """`ret ns::fn<args>(params)`, each part but the name optional."""
    depth, last_space, end = 0, -1, len(text)
    i = 0
    while i < len(text):
        c = text[i]
        if text.startswith("operator", i) and not text[i - 1 : i].isalnum():
            i += len("operator")
            while i < len(text) and text[i] in "()<>=+-*/[]!&|^~% ,":
                if text[i] == "(" and text[i : i + 2] != "()":
                    break
                i += 2 if text[i : i + 2] == "()" else 1
            continue
        if c in "<([{":
            if c == "(" and depth == 0 and i > 0:
                end = i
                break
            depth += 1
        elif c in ">)]}":
            if not (c == ">" and text[i - 1 : i] == "-"):
                depth = max(0, depth - 1)
        elif c == " " and depth == 0:
            last_space = i
        i += 1
    head = text[last_space + 1 : end].strip()
    if not head or not re.match(r"[A-Za-z_~]", head):
        head = text[:end].strip() or text
    base, last = _strip_arguments(head)
    return KernelName(base or text, tuple(_plain(a) for a in split_arguments(last)), text)


def _strip_arguments(head: str) -> tuple[str, str]:
    """(`a<x>::b<y>` without the bracketed parts, the content of the last ones)."""
    kept, depth, start, last = [], 0, 0, ""
    for i, c in enumerate(head):
        if c == "<":
            if depth == 0:
                start = i + 1
            depth += 1
        elif c == ">" and depth:
            depth -= 1
            if depth == 0:
                last = head[start:i]
        elif depth == 0:
            if c == ":" and head[i - 1 : i] == ">":
                last = ""
            kept.append(c)
    return "".join(kept), last


def split_arguments(text: str) -> list[str]:
    """Template arguments at the outermost level."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<([{":
            depth += 1
        elif c in ">)]}":
            if not (c == ">" and text[i - 1 : i] == "-"):
                depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest or parts else []


def _plain(argument: str) -> str:
    """A value without its cast or suffix: `(int)8`, `8l` and `8` are one, `(bool)1` is true."""
    value = _CAST.sub("", argument)
    if argument.startswith("(bool)"):
        return {"1": "true", "0": "false"}.get(value, value)
    if found := _SUFFIX.match(value):
        return found[1]
    return value


class _Stop(Exception):
    """The mangled name goes on in a way that this reader does not know."""


_BUILTIN = {
    "v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "f": "float", "d": "double", "z": "...", "w": "wchar_t", "n": "__int128",
}  # fmt: skip
_D_TYPES = {"DF16b": "bf16", "DF16_": "_Float16", "Dh": "half", "Dn": "nullptr", "Da": "auto", "Di": "char32_t"}
_STD = {"St": "std", "Sa": "std::allocator", "Ss": "std::string", "Sb": "std::basic_string"}


class _Mangled:
    """A recursive reader of `_Z` names, the leading `_Z` removed."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def kernel(self) -> tuple[str, tuple[str, ...]] | None:
        """(qualified name, template arguments), or None if not even the name can be read."""
        self.components: list[str] = []
        self.arguments: tuple[str, ...] = ()
        with suppress(_Stop, IndexError, ValueError):
            self._name(top=True)
        base = "::".join(c for c in self.components if c and c not in _ANONYMOUS and not c.startswith("_GLOBAL__N"))
        return (base, self.arguments) if base else None

    def _peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def _take(self, n: int = 1) -> str:
        found = self.text[self.at : self.at + n]
        if len(found) < n:
            raise _Stop
        self.at += n
        return found

    def _source(self) -> str:
        digits = re.match(r"\d+", self.text[self.at :])
        if digits is None:
            raise _Stop
        self.at += len(digits[0])
        return self._take(int(digits[0]))

    def _name(self, top: bool = False) -> str:
        """A name, nested or not, with its arguments. At the top, components and arguments are kept as they come."""
        components: list[str] = []
        nested = self._peek() == "N"
        if nested:
            self._take()
            while self._peek() in ("K", "V", "r"):
                self._take()
        while True:
            c = self._peek()
            if nested and c == "E":
                self._take()
                break
            if c == "I":
                arguments = self._arguments()
                if top:
                    self.arguments = arguments
                elif components:
                    components[-1] += f"<{', '.join(arguments)}>"
                if not nested:
                    break
                continue
            if c.isdigit():
                part = self._source()
            elif self._peek(2) in _STD:
                part = _STD[self._take(2)]
            elif c == "S":
                part = self._substitution()
            elif c == "U":
                part = self._lambda()
            elif c == "T":
                part = self._parameter()
            elif c == "L":
                self._take()
                continue
            elif nested and c in ("C", "D"):
                part = self._take(2)
            else:
                if not nested and components:
                    break
                raise _Stop
            components.append(part)
            if top:
                self.components.append(part)
                self.arguments = ()
            if not nested and part != "std" and self._peek() != "I":
                break
        return "::".join(components)

    def _substitution(self) -> str:
        found = re.match(r"S[0-9A-Z]*_", self.text[self.at :])
        if found is None:
            raise _Stop
        self.at += len(found[0])
        return found[0]

    def _parameter(self) -> str:
        found = re.match(r"T\d*_", self.text[self.at :])
        if found is None:
            raise _Stop
        self.at += len(found[0])
        return found[0]

    def _lambda(self) -> str:
        found = re.match(r"U[lt](?:\w*?E)?\d*_", self.text[self.at :])
        if found is None:
            raise _Stop
        self.at += len(found[0])
        return "lambda"

    def _arguments(self) -> tuple[str, ...]:
        self._take()
        found: list[str] = []
        while self._peek() != "E":
            if self._peek() == "J":
                self._take()
                while self._peek() != "E":
                    found.append(self._argument())
                self._take()
                continue
            found.append(self._argument())
        self._take()
        return tuple(found)

    def _argument(self) -> str:
        if self._peek() == "L":
            return self._literal()
        if self._peek(4) == "XadL":  # the address of a function
            self._take(3)
            value = self._literal()
            self._take()
            return value
        if self._peek(2) == "Tn":  # a constraint on a non-type parameter stands before its value
            self._take(2)
            self._type()
            return self._argument()
        return self._type()

    def _literal(self) -> str:
        self._take()
        if self._peek(2) == "_Z":
            self._take(2)
            inner = _Mangled(self.text[self.at :])
            name = inner._name()
            self.at += inner.at
            depth_end = self.text.find("E", self.at)
            if depth_end < 0:
                raise _Stop
            if self._peek() != "E":
                self._type_list()
            self._take()
            return "&" + name
        kind = self._type()
        end = self.text.index("E", self.at)
        value = self.text[self.at : end].replace("n", "-", 1)
        self.at = end + 1
        if kind == "bool":
            return {"1": "true", "0": "false"}.get(value, value)
        return value

    def _type_list(self) -> None:
        while self._peek() not in ("E", ""):
            self._type()

    def _type(self) -> str:
        for code, name in _D_TYPES.items():
            if self._peek(len(code)) == code:
                self._take(len(code))
                return name
        c = self._peek()
        if c in ("P", "R", "O", "K", "V", "r"):
            self._take()
            mark = {"P": "*", "R": "&", "O": "&&", "K": " const"}.get(c, "")
            return self._type() + mark
        if c == "F":
            self._take()
            self._type_list()
            self._take()
            return "function"
        if c == "A":
            size = re.match(r"A\d*_", self.text[self.at :])
            if size is None:
                raise _Stop
            self.at += len(size[0])
            return self._type() + "[]"
        if c == "D" and self._peek(2) == "Dp":
            self._take(2)
            return self._type() + "..."
        if c == "u":
            self._take()
            return self._source()
        if c in _BUILTIN:
            self._take()
            return _BUILTIN[c]
        if c == "S" and self._peek(2) not in _STD:
            part = self._substitution()
            if self._peek() == "I":
                part += f"<{', '.join(self._arguments())}>"
            return part
        if c == "T":
            part = self._parameter()
            if self._peek() == "I":
                part += f"<{', '.join(self._arguments())}>"
            return part
        if c == "N" or c.isdigit() or c == "S":
            return self._name()
        raise _Stop
