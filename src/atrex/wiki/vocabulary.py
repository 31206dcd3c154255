"""The words of `arch`, `dsl` and `operators`: which are known, and what belongs to what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import atrex.suite

DATA = Path(__file__).parent / "data"


def read_yaml(text: str) -> Any:
    """YAML, by the C parser where PyYAML was built with it: about eight times as fast."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@dataclass(frozen=True)
class Vocabulary:
    """`architectures`, `vendors`, `dsls`: name -> what free text calls it; `groups`: group -> operators."""

    architectures: Mapping[str, Mapping[str, Any]]
    vendors: Mapping[str, tuple[str, ...]]
    dsls: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[str, ...]]
    operators: tuple[str, ...]

    def vendor_of(self, arch: str) -> str:
        """The vendor of an architecture word; KeyError for one that is not known."""
        return self.architectures[arch]["vendor"]

    def with_groups(self, operators: Iterable[str]) -> set[str]:
        """The operators named, the groups that they belong to, and the members of groups named."""
        named = set(operators)
        members = {operator for group in named for operator in self.groups.get(group, ())}
        return named | members | {group for group, inside in self.groups.items() if named & set(inside)}


def nearest(name: str, known: list[str]) -> str:
    """A clause that names what may have been meant by an unknown name; empty when nothing is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=3, cutoff=0.5)
    return f", did you mean {', '.join(near)}?" if near else ""


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """The shipped vocabulary; the operators are those of the shipped suite."""
    data = read_yaml((DATA / "vocabulary.yaml").read_text())
    suite = Path(atrex.suite.__file__).parent
    return Vocabulary(
        architectures=data["architectures"],
        vendors={name: tuple(words) for name, words in data["vendors"].items()},
        dsls={name: tuple(words) for name, words in data["dsls"].items()},
        groups={name: tuple(members) for name, members in data["operator_groups"].items()},
        operators=tuple(sorted(path.parent.name for path in suite.glob("*/shapes.json"))),
    )
