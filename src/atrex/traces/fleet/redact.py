"""Names of a fleet as they are written: as they are, or without what tells whose fleet it is.

Redaction works by construction: what is written of a fleet is numbers, names of operators, frameworks and chips, and
the three kinds of text below. Applications are numbered, kernels keep their names only where a rule knows them and
nothing of the fleet's own names is in them, and explanations are dropped where they hold such a name.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable, Sequence

from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.spec import Fleet
from atrex.traces.mining.mine import config_of

SHORTEST = 3  # a shorter name says nothing, and would be found everywhere
WITHHELD = "explained by the fleet's owner"


class Names:
    """How names are written. This one writes them as they are."""

    redacted = False

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    @property
    def suite(self) -> str:
        return self.fleet.name or self.fleet.path.stem

    @property
    def version(self) -> str:
        return self.fleet.version or "unversioned"

    def application(self, name: str) -> str:
        return name

    def symbols(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def text(self, text: str) -> str:
        return text


class Redacted(Names):
    """Writes neither models nor applications, hosts, users or paths. `secrets`: all of them, in lower case."""

    redacted = True

    def __init__(self, fleet: Fleet, gathered: Gathered) -> None:
        super().__init__(fleet)
        self._numbers = {name: f"application-{i}" for i, name in enumerate(fleet.applications, 1)}
        self.secrets = frozenset(_secrets(fleet, gathered))
        self._known = _known_symbols(gathered)

    @property
    def suite(self) -> str:
        return "fleet"

    @property
    def version(self) -> str:
        return "unversioned" if self._tells(super().version) else super().version

    def application(self, name: str) -> str:
        return self._numbers[name]

    def symbols(self, names: Sequence[str]) -> list[str]:
        return [n for n in names if n in self._known and not self._tells(n)]

    def text(self, text: str) -> str:
        return WITHHELD if self._tells(text) else text

    def _tells(self, text: str) -> bool:
        folded = text.lower()
        return any(secret in folded for secret in self.secrets)


def _secrets(fleet: Fleet, gathered: Gathered) -> Iterable[str]:
    names: list[str] = [*fleet.applications, getpass.getuser(), socket.gethostname(), fleet.name or ""]
    paths = [fleet.path, *(p for name in fleet.applications if (p := fleet.config_of(name)) is not None)]
    for name in fleet.applications:
        paths += [path for path, _ in fleet.files_of(name)]
        config = config_of(fleet, name)
        names += list(config.names) if config is not None else []
    for path in paths:
        names += [part for part in path.resolve().parts if part != path.anchor]
        names.append(path.name.split(".")[0])
    names += list(gathered.of)
    for name in names:
        if len(name) >= SHORTEST:
            yield name.lower()


def _known_symbols(gathered: Gathered) -> set[str]:
    """Kernel names that a rule knows by themselves, not by what stood around them."""
    import polars as pl

    kernels = gathered.data.table("kernels", gathered.serving()).select("short_name", "evidence").unique().collect()
    return set(kernels.filter(pl.col("evidence").fill_null("").str.contains("kernel|class"))["short_name"].to_list())
