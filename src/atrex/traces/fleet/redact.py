"""Names of a fleet as they are written: as they are, or without what tells whose fleet it is.

Redaction works by construction: what is written of a fleet is numbers, names of operators, frameworks and chips, and
the three kinds of text below. Applications are numbered, kernels keep their names only where a rule knows them and
nothing of the fleet's own names is in them, and explanations are dropped where they hold such a name.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Sequence

from atrex.hardware.chip import chip_ids
from atrex.traces.families.rules import load_rules
from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.spec import Fleet
from atrex.traces.mining.mine import config_of

SHORTEST, SHORTEST_WORD = 3, 4  # what is shorter says nothing, and would be found everywhere
# Words in names of files and models that say nothing of their owner, and stand in names of kernels.
COMMON = frozenset((
    "capture", "causal", "conditional", "config", "data", "decode", "eager", "execution", "generation", "graph",
    "home", "json", "kernel", "kernels", "kineto", "mixed", "model", "models", "opt", "prefill", "profile",
    "profiles", "rank", "replay", "root", "run", "runs", "sqlite", "srv", "step", "steps", "text", "tmp", "trace",
    "traces", "user", "users", "var", "work",
))  # fmt: skip
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
    """The fleet's names and the words they are made of, without those that engines and rules use for everybody."""
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
    common = _common()
    for name in names:
        folded = name.lower()
        if len(folded) >= SHORTEST and folded not in common:
            yield folded
        yield from (w for w in _words(name) if len(w) >= SHORTEST_WORD and w not in common)


def _words(name: str) -> list[str]:
    """Words of a name in lower case, parts of CamelCase names too."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", apart) if word]


def _common() -> frozenset[str]:
    rules = load_rules()
    named = [*rules.engines, *rules.families, *(rule.package for rule in rules.rules), *chip_ids()]
    return COMMON | {word for name in named for word in [name.lower(), *_words(name)]}


def _known_symbols(gathered: Gathered) -> set[str]:
    """Kernel names that a rule knows by themselves, not by what stood around them."""
    import polars as pl

    kernels = gathered.data.table("kernels", gathered.serving()).select("short_name", "evidence").unique().collect()
    return set(kernels.filter(pl.col("evidence").fill_null("").str.contains("kernel|class"))["short_name"].to_list())
