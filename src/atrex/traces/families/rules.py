"""The rules as they stand in `data/*.yaml`, read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from atrex.errors import UserError
from atrex.traces.families.chains import Chain, ChainMatcher
from atrex.traces.families.versions import VersionRange

FAMILIES_FILE = "families.yaml"
CHAIN_ANCHORS = ("gemm", "attention", "norm")  # tokens by family: matrix products, attention, normalizations


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Family(_Strict):
    """`operator`: the suite's operator of this family, or None for what the suite does not hold."""

    what: str
    operator: str | None = None
    mapped: bool = True


def _joined(value: Any) -> Any:
    """Several expressions as one."""
    return "|".join(f"(?:{v})" for v in value) if isinstance(value, list) else value


_Expression = Annotated[str, BeforeValidator(_joined)]


class KernelClass(_Strict):
    """Kernels that many operators share. Without evidence from around the launch they end in `family`."""

    name: str = Field(alias="class")
    family: str
    kernel: _Expression | None = None
    text: _Expression | None = None


class Rule(_Strict):
    """All conditions must hold; regular expressions are searched.

    `kernel`: in the qualified name without template arguments. `text`: in the name with them, readable and as recorded.
    `args`: position -> expression for the whole template argument. `class`: kernel classes. `op`, `module`, `frame`:
    the innermost one around the launch; `ops`, `modules`, `frames`, `annotations`: any of them. `dtypes`: the operand
    types of the innermost operator. `versions`: of the file's package; a rule outside the trace's version is not
    asked. `phase`: what this kernel says about the step around it. Of several rules the one with the highest
    `priority` holds, then the one with evidence from the innermost operator, then the one with more conditions, then
    the first.
    """

    family: str
    kernel: _Expression | None = None
    text: _Expression | None = None
    args: dict[int, str] = Field(default_factory=dict)
    classes: tuple[str, ...] = Field(default=(), alias="class")
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

    @field_validator("classes", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value)

    @property
    def names_kernel(self) -> bool:
        return self.kernel is not None or self.text is not None

    @property
    def conditions(self) -> int:
        single = (self.kernel, self.text, self.op, self.ops, self.module, self.modules, self.frame, self.frames,
                  self.annotations, self.dtypes)  # fmt: skip
        return sum(c is not None for c in single) + len(self.args) + bool(self.classes)


class ChainRule(_Strict):
    """A run of kernels on one stream that is one operator; see `atrex.traces.families.chains`."""

    family: str
    chain: str


class _File(_Strict):
    framework: str
    package: str | None = None
    classes: tuple[KernelClass, ...] = ()
    tokens: dict[str, _Expression] = Field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    chains: tuple[ChainRule, ...] = ()


class _FamiliesFile(_Strict):
    families: dict[str, Family]
    groups: dict[str, dict[str, _Expression]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """A rule ready to be asked: `id` is file:position, `patterns` its expressions by field."""

    id: str
    rule: Rule
    package: str
    range: VersionRange | None
    patterns: dict[str, re.Pattern[str]] = field(compare=False)
    args: dict[int, re.Pattern[str]] = field(compare=False)


@dataclass(frozen=True)
class RuleSet:
    """Everything in the files of one folder."""

    families: dict[str, Family]
    classes: tuple[tuple[KernelClass, re.Pattern[str] | None, re.Pattern[str] | None], ...]
    rules: tuple[Compiled, ...]
    groups: dict[str, re.Pattern[str]]  # MoE calls: expressions for "op" and "module"
    frameworks: tuple[str, ...]
    chains: ChainMatcher


_PATTERN_FIELDS = ("kernel", "text", "op", "ops", "module", "modules", "frame", "frames", "annotations", "dtypes")


def load_rules(folder: Path | None = None) -> RuleSet:
    """The rules of `folder`, or those that ship with Atrex.

    Raises UserError, naming file, rule and field, for a file that does not hold to the form, an unknown family or
    class, or an expression that does not compile.
    """
    return _shipped() if folder is None else _load(folder)


@lru_cache(maxsize=1)
def _shipped() -> RuleSet:
    with resources.as_file(resources.files("atrex.traces.families") / "data") as folder:
        return _load(folder)


def _load(folder: Path) -> RuleSet:
    base = _parse(folder / FAMILIES_FILE, _FamiliesFile)
    _known(folder / FAMILIES_FILE, "other", base.families)
    classes: list[tuple[KernelClass, re.Pattern[str] | None, re.Pattern[str] | None]] = []
    compiled: list[Compiled] = []
    frameworks: list[str] = []
    tokens: dict[str, re.Pattern[str]] = {}
    chains: list[Chain] = []
    for path in sorted(folder.glob("*.yaml")):
        if path.name == FAMILIES_FILE:
            continue
        file = _parse(path, _File)
        frameworks.append(file.framework)
        for kernel_class in file.classes:
            _known(path, kernel_class.family, base.families)
            classes.append((kernel_class, _regex(path, "kernel", kernel_class.kernel),
                            _regex(path, "text", kernel_class.text)))  # fmt: skip
        tokens |= {name: _regex(path, f"tokens.{name}", text) for name, text in file.tokens.items()}
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
                    patterns={f: _regex(path, f, v) for f in _PATTERN_FIELDS if (v := getattr(rule, f)) is not None},
                    args={i: _regex(path, "args", v) for i, v in rule.args.items()},
                )  # fmt: skip
            )
    names = {c.name for c, _, _ in classes} | {"memcpy", "memset", "graph", "unknown"}
    for one in compiled:
        for name in one.rule.classes:
            if name not in names:
                raise UserError(f"{one.id}: class {name!r}: expected one of {', '.join(sorted(names))}")
    groups = {k: re.compile(v) for k, v in base.groups.get("moe", {}).items()}
    try:
        matcher = ChainMatcher(tokens, chains, CHAIN_ANCHORS)
    except ValueError as error:
        raise UserError(f"{folder}: chains: {error}") from None
    return RuleSet(base.families, tuple(classes), tuple(compiled), groups, tuple(frameworks), matcher)


def _parse(path: Path, model: type[Any]) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return model.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=loader) or {})
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {where}: {first['msg']}") from None


def _known(path: Path, family: str, families: dict[str, Family]) -> None:
    if family not in families:
        raise UserError(f"{path}: family {family!r}: not in {FAMILIES_FILE}")


def _regex(path: Path, name: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{path}: {name}: {text!r} is no regular expression: {error}") from None
