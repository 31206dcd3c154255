"""The rules as they stand in `data/*.yaml`, read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct, field

from atrex.errors import UserError
from atrex.traces.families.chains import Chain, ChainMatcher
from atrex.traces.families.versions import VersionRange

FAMILIES_FILE = "families.yaml"
CHAIN_ANCHORS = ("gemm", "attention", "norm")  # tokens by family: matrix products, attention, normalizations


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    pass


class Family(_Strict):
    """`operator`: the suite's operator of this family, or None for what the suite does not hold."""

    what: str
    operator: str | None = None
    mapped: bool = True


_Expression = str | list[str]  # several are alternatives


class KernelClass(_Strict):
    """Kernels that many operators share. Without evidence from around the launch they end in `family`."""

    family: str
    name: str = field(name="class")
    kernel: _Expression | None = None
    text: _Expression | None = None


class Rule(_Strict):
    """All conditions must hold; regular expressions are searched.

    `kernel`: in the qualified name without template arguments. `text`: in the name with them, readable and as recorded.
    `args`: position -> expression for the whole template argument. `class`: kernel classes. `op`, `module`, `frame`:
    the innermost one around the launch; `ops`, `modules`, `frames`, `annotations`: any of them. `dtypes`: the operand
    types of the innermost operator. `versions`: of the file's package; a rule outside the trace's version is not asked.
    `phase`: what this kernel says about the step around it. Of several rules the one with the highest `priority` holds,
    then the one with evidence from the innermost operator, then the one with more conditions, then the first.
    """

    family: str
    kernel: _Expression | None = None
    text: _Expression | None = None
    args: dict[int, str] = field(default_factory=dict)
    classes: _Expression = field(name="class", default_factory=list)
    op: _Expression | None = None
    ops: _Expression | None = None
    module: _Expression | None = None
    modules: _Expression | None = None
    frame: _Expression | None = None
    frames: _Expression | None = None
    annotations: _Expression | None = None
    dtypes: _Expression | None = None
    versions: str | None = None
    phase: str | None = None
    priority: int = 0

    @property
    def names_kernel(self) -> bool:
        return self.kernel is not None or self.text is not None

    @property
    def class_names(self) -> tuple[str, ...]:
        return (self.classes,) if isinstance(self.classes, str) else tuple(self.classes)

    @property
    def conditions(self) -> int:
        single = sum(getattr(self, name) is not None for name in _PATTERN_FIELDS)
        return single + len(self.args) + bool(self.classes)


class ChainRule(_Strict):
    """A run of kernels on one stream that is one operator; see `atrex.traces.families.chains`."""

    family: str
    chain: str


class _File(_Strict):
    framework: str
    package: str | None = None
    classes: list[KernelClass] = []
    tokens: dict[str, _Expression] = {}
    rules: list[Rule] = []
    chains: list[ChainRule] = []


class _FamiliesFile(_Strict):
    families: dict[str, Family]
    groups: dict[str, dict[str, _Expression]] = {}
    engines: dict[str, _Expression] = {}


_PATTERN_FIELDS = ("kernel", "text", "op", "ops", "module", "modules", "frame", "frames", "annotations", "dtypes")


@dataclass(frozen=True)
class Compiled:
    """A rule ready to be asked: `id` is file:position, `patterns` its expressions by field."""

    id: str
    rule: Rule
    package: str
    range: VersionRange | None
    classes: frozenset[str]
    conditions: int
    patterns: dict[str, Expression] = dataclass_field(compare=False)
    args: dict[int, Expression] = dataclass_field(compare=False)


@dataclass(frozen=True)
class RuleSet:
    """Everything in the files of one folder."""

    families: dict[str, Family]
    classes: tuple[tuple[KernelClass, Expression | None, Expression | None], ...]
    rules: tuple[Compiled, ...]
    groups: dict[str, Expression]  # MoE calls: expressions for "op" and "module"
    frameworks: tuple[str, ...]
    chains: ChainMatcher
    engines: dict[str, Expression]


def load_rules(folder: Path | None = None) -> RuleSet:
    """The rules of `folder`, or those that ship with Atrex.

    Raises UserError, naming file, rule and field, for a file that does not hold to the form, an unknown family or
    class, or an expression that does not compile.
    """
    if folder is None:
        return _shipped()
    rules = _load(folder)
    _check(folder, rules)
    return rules


@lru_cache(maxsize=1)
def _shipped() -> RuleSet:
    with resources.as_file(resources.files("atrex.traces.families") / "data") as folder:
        return _load(folder)


def _load(folder: Path) -> RuleSet:
    base = _parse(folder / FAMILIES_FILE, _FamiliesFile)
    _known(folder / FAMILIES_FILE, "other", base.families)
    classes: list[tuple[KernelClass, Expression | None, Expression | None]] = []
    compiled: list[Compiled] = []
    frameworks: list[str] = []
    tokens: dict[str, Expression] = {}
    chains: list[Chain] = []
    for path in sorted(folder.glob("*.yaml")):
        if path.name == FAMILIES_FILE:
            continue
        file = _parse(path, _File)
        frameworks.append(file.framework)
        for kernel_class in file.classes:
            _known(path, kernel_class.family, base.families)
            both = (None if e is None else _expression(e) for e in (kernel_class.kernel, kernel_class.text))
            classes.append((kernel_class, *both))
        tokens |= {name: _expression(text) for name, text in file.tokens.items()}
        for number, chain in enumerate(file.chains, 1):
            _known(path, chain.family, base.families)
            chains.append(Chain(chain.family, chain.chain, f"{path.stem}:chain {number}"))
        for number, rule in enumerate(file.rules, 1):
            _known(path, rule.family, base.families)
            try:
                versions = VersionRange.parse(rule.versions) if rule.versions else None
            except ValueError as error:
                raise UserError(f"{path}: rule {number}: versions: {error}") from None
            compiled.append(
                Compiled(
                    id=f"{path.stem}:{number}",
                    rule=rule,
                    package=file.package or file.framework,
                    range=versions,
                    classes=frozenset(rule.class_names),
                    conditions=rule.conditions,
                    patterns={f: _expression(v) for f in _PATTERN_FIELDS if (v := getattr(rule, f)) is not None},
                    args={i: _expression(v) for i, v in rule.args.items()},
                )  # fmt: skip
            )
    names = {c.name for c, _, _ in classes} | {"memcpy", "memset", "graph", "unknown"}
    for one in compiled:
        for name in one.rule.class_names:
            if name not in names:
                raise UserError(f"{one.id}: class {name!r}: expected one of {', '.join(sorted(names))}")
    groups = {k: _expression(v) for k, v in base.groups.get("moe", {}).items()}
    try:
        matcher = ChainMatcher(tokens, chains, CHAIN_ANCHORS)
    except ValueError as error:
        raise UserError(f"{folder}: chains: {error}") from None
    return RuleSet(base.families, tuple(classes), tuple(compiled), groups, tuple(frameworks), matcher,
                   {k: _expression(v) for k, v in base.engines.items()})  # fmt: skip


def _parse(path: Path, model: type[Any]) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return msgspec.convert(yaml.load(path.read_text(encoding="utf-8"), Loader=loader) or {}, model)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None


def _known(path: Path, family: str, families: dict[str, Family]) -> None:
    if family not in families:
        raise UserError(f"{path}: family {family!r}: not in {FAMILIES_FILE}")


class Expression:
    """A regular expression that is compiled when it is first asked: a run needs a part of the rules, and compiling them
    all takes longer than applying them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._pattern: re.Pattern[str] | None = None

    def compiled(self) -> re.Pattern[str]:
        if self._pattern is None:
            self._pattern = re.compile(self.text)
        return self._pattern

    def search(self, value: str) -> re.Match[str] | None:
        return (self._pattern or self.compiled()).search(value)

    def fullmatch(self, value: str) -> re.Match[str] | None:
        return (self._pattern or self.compiled()).fullmatch(value)


def _expression(text: _Expression) -> Expression:
    return Expression("|".join(f"(?:{part})" for part in text) if isinstance(text, list) else text)


def _check(folder: Path, rules: RuleSet) -> None:
    """Compile everything, so that a wrong expression is found when the rules are read and not when it is asked."""
    named = [(f"class {c.name}", e) for c, *both in rules.classes for e in both if e is not None]
    named += [(one.id, e) for one in rules.rules for e in (*one.patterns.values(), *one.args.values())]
    named += [("groups", e) for e in rules.groups.values()] + [("tokens", e) for e in rules.chains.tokens.values()]
    for where, expression in named:
        try:
            expression.compiled()
        except re.error as error:
            raise UserError(f"{folder}: {where}: {expression.text!r} is no regular expression: {error}") from None
