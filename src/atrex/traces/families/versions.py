"""Version ranges such as `>=0.26,<0.33`: enough of PEP 440 for release numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(r"^\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*$")
Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """The release numbers of a version; what follows them (`.dev3`, `+cu130`) is dropped. Raises ValueError."""
    found = re.match(r"^v?(\d+(?:\.\d+)*)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no version: expected numbers such as 0.33.0")
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def parse_framework(text: str) -> tuple[str, Version]:
    """("vllm", version) of "vllm==0.33.0". Raises ValueError, with what was expected."""
    name, separator, version = text.partition("==")
    try:
        return name, parse_version(version if separator else "")
    except ValueError:
        raise ValueError(f"{text!r}: expected NAME==VERSION, such as vllm==0.33.0") from None


@dataclass(frozen=True)
class VersionRange:
    """A conjunction of comparisons."""

    parts: tuple[tuple[str, Version], ...]

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        parts = []
        for part in text.split(","):
            found = _PART.match(part)
            if found is None:
                raise ValueError(f"{text!r}: expected comparisons such as >=0.26,<0.33")
            parts.append((found[1], parse_version(found[2])))
        return cls(tuple(parts))

    def __contains__(self, version: Version) -> bool:
        compare = {
            ">=": version.__ge__, "<=": version.__le__, "==": version.__eq__, "!=": version.__ne__,
            ">": version.__gt__, "<": version.__lt__,
        }  # fmt: skip
        return all(compare[sign](bound) for sign, bound in self.parts)
