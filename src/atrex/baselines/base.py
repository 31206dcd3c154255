"""What a baseline is, and the registry.

A baseline is a library and, for each operator that it has, a `Model` that calls it. The Model is ordinary code in the
library's adapter file; what the judge gets is its text alone (`atrex.baselines.source`), as of any candidate.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atrex.baselines.source import candidate_text
from atrex.errors import UserError
from atrex.modules import import_all
from atrex.problems.model import Problem, Shape
from atrex.scoring.records import Origin

Lacks = Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]
_REGISTRY: dict[str, Baseline] = {}


@dataclass(frozen=True)
class Function:
    """How a library computes one operator.

    `calls` names its functions, `note` what the call does beside them. `adapted` says that this is work which an engine
    would not do (copies of what a function overwrites, other layouts): such a time stands for no production time.
    `lacks` takes init_kwargs and input_kwargs of a shape and says what of it the library does not do, None for nothing.
    `since` is the first version known to have the function, None for all that the adapter was written against.
    """

    operator: str
    calls: str
    model: type[torch.nn.Module]
    note: str | None = None
    adapted: bool = False
    lacks: Lacks = lambda init, inputs: None
    since: str | None = None


class Baseline:
    """One library. Made once, in its adapter file, whose Models it decorates with `covers`.

    `versions` are those of `distribution` that the adapter was written against; `production` says that engines serve
    models with it. `file` is the adapter's.
    """

    def __init__(
        self, name: str, file: str, distribution: str, install: str, versions: Iterable[str],
        devices: Iterable[str] = ("cuda",), production: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.file, self.distribution, self.install = name, Path(file), distribution, install
        self.versions, self.devices, self.production = tuple(versions), tuple(devices), production
        self.functions: dict[str, Function] = {}
        _REGISTRY[name] = self

    def covers(
        self,
        operator: str,
        calls: str,
        note: str | None = None,
        adapted: bool = False,
        lacks: Lacks | None = None,
        since: str | None = None,
    ) -> Callable[[type[torch.nn.Module]], type[torch.nn.Module]]:
        """Class decorator: this Model computes `operator` with the library."""

        def decorate(model: type[torch.nn.Module]) -> type[torch.nn.Module]:
            if operator in self.functions:
                raise ValueError(f"{self.name}: {operator} stands twice")
            more = {"lacks": lacks} if lacks else {}
            self.functions[operator] = Function(operator, calls, model, note, adapted, since=since, **more)
            return model

        return decorate

    @property
    def version(self) -> str | None:
        """The installed version, None when the library is not here."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    def knows(self, version: str) -> bool:
        """Whether the adapter was written against this version."""
        return any(version == known or version.startswith(f"{known}.") for known in self.versions)

    def require(self, device: str) -> str:
        """The installed version. Raises UserError for a library that is not here or does not run on `device`."""
        version = self.version
        if version is None:
            raise UserError(f"baseline {self.name}: {self.distribution} is not installed: {self.install}")
        if device.split(":")[0] not in self.devices:
            raise UserError(f"baseline {self.name} runs on {' and '.join(self.devices)} only, not on {device}")
        return version

    def has(self, operator: str) -> bool:
        """Whether the library computes this operator."""
        return operator in self.functions

    def lacks(self, problem: Problem, shape: Shape) -> str | None:
        """What of a shape the library does not do; None for nothing."""
        function = self.functions.get(problem.operator)
        if function is None:
            return None if self.has(problem.operator) else f"{self.name} has no {problem.operator}"
        version = self.version
        if function.since and version and _numbers(version) < _numbers(function.since):
            return f"{self.distribution} has it since {function.since}, this is {version}"
        return function.lacks(shape.init_kwargs, shape.input_kwargs)

    def origin(self, operator: str) -> Origin:
        """What a record says about where the kernel comes from."""
        function = self.functions[operator]
        return Origin(
            name=self.name, library=self.distribution, version=self.version, calls=function.calls, note=function.note,
            production=self.production and not function.adapted,
        )  # fmt: skip

    def text(self, problem: Problem) -> str:
        """The candidate's source text for a problem."""
        function = self.functions[problem.operator]
        about = f'"""{problem.operator} by {self.distribution}: {function.calls}."""'
        return candidate_text(self.file.read_text(encoding="utf-8"), function.model.__name__, about)


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers that a version begins with: (0, 5, 3) of 0.5.3.post1+cu130."""
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", version)[0].split("."))


def names() -> list[str]:
    """Known baselines: PyTorch's own first, then by name."""
    import_all("atrex.baselines")
    return sorted(_REGISTRY, key=lambda name: (not name.startswith("torch"), name))


def get(name: str) -> Baseline:
    """The baseline of this name. Raises UserError that lists the known ones."""
    if name not in names():
        raise UserError(f"unknown baseline {name!r}: expected one of {', '.join(names())}")
    return _REGISTRY[name]
