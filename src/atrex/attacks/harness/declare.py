"""The declaration of an attack, and the registry: every module of `atrex.attacks`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from atrex.attacks.harness.expect import Expectation
from atrex.errors import UserError

DEVICES = ("cpu", "cuda")
_SHAPES = {"rms_norm": {"cpu": "28", "cuda": "36"}}


@dataclass(frozen=True)
class Form:
    """One way to carry an attack out: cheats by label, and the honest twin of all of them.

    A source is the text of a candidate, or, with a `base`, what follows the honest candidate of that name in
    `atrex.attacks.candidates`, whose Model it knows as Honest. The base is C++ on the CPU and Triton on CUDA.

    With `dominant` the twin must spend most of its time in its own DSL. `limits` replace those that the judge sets
    a worker, by name, and `execution` the seconds that it waits for a forward. `leaves` is the name of processes that
    must be gone when the unit has ended. `suite` names a folder of `atrex.attacks.problems`, for operators that the
    shipped suite does not have. A `slow` form takes more than a few seconds.
    """

    cheats: Mapping[str, str]
    twin: str
    expect: Expectation
    operator: str = "rms_norm"
    shapes: Mapping[str, str] | None = None
    devices: tuple[str, ...] = DEVICES
    base: str | None = "rms_norm"
    dominant: bool = True
    limits: Mapping[str, int] = field(default_factory=dict)
    execution: float | None = None
    leaves: str | None = None
    suite: str | None = None
    slow: bool = False

    def __post_init__(self) -> None:
        if set(self.devices) - set(DEVICES):
            raise ValueError(f"devices {self.devices}: expected some of {DEVICES}")

    def shape(self, device_type: str) -> str:
        """The shape id that this form is judged on."""
        return (self.shapes or _SHAPES[self.operator])[device_type]


@dataclass(frozen=True)
class Attack:
    """`ways`: numbers of the entries of docs/attacks.md that it stands for."""

    ways: tuple[int, ...]
    forms: tuple[Form, ...] = field(default_factory=tuple)

    def __init__(self, ways: tuple[int, ...], *forms: Form):
        object.__setattr__(self, "ways", ways)
        object.__setattr__(self, "forms", forms)


@cache
def attacks() -> dict[str, Attack]:
    """Every attack by the name of its module, in alphabetical order."""
    package = importlib.import_module("atrex.attacks")
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.ispkg:
            found[module.name] = importlib.import_module(f"atrex.attacks.{module.name}").ATTACK
    return dict(sorted(found.items()))


def select(names: list[str] | None) -> dict[str, Attack]:
    """The attacks of these names, or all. Raises UserError for an unknown one."""
    known = attacks()
    if not names:
        return known
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"--only {unknown[0]}: unknown attack; expected one of {', '.join(known)}")
    return {name: attack for name, attack in known.items() if name in names}


def purpose(name: str) -> str:
    """The first line of the attack module's docstring."""
    return (importlib.import_module(f"atrex.attacks.{name}").__doc__ or "").strip().splitlines()[0]
