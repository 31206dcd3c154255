"""What was compiled for one shape: one attempt per kernel specialization or source, done or failed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


class Undetermined(Exception):
    """Nothing here can tell whether the candidate compiles: what it asks for needs a device, a package or a value."""


class Enough(BaseException):
    """Ends a forward whose rest needs results of kernels that were compiled and not run. No failure.

    Not an `Exception`, so that a candidate's own fallback around its launch does not take it for one.
    """


@dataclass(frozen=True)
class Attempt:
    """One artifact that the target DSL was asked for. `reason` is empty when it was completed."""

    name: str
    kind: str
    sha256: str = ""
    bytes: int = 0
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Attempts:
    """The attempts of the shape in hand; `begin` forgets those of the last one.

    A kernel that an earlier shape compiled counts for every shape that launches it.
    """

    _found: dict[tuple[str, str], Attempt] = field(default_factory=dict)

    def begin(self, already: Iterable[Attempt] = ()) -> None:
        """Start a shape; `already` is what the candidate compiled before, for all of them."""
        self._found = {(a.name, a.sha256 or a.reason): a for a in already}

    def compiled(self, name: str, kind: str, binary: bytes) -> None:
        """An artifact was completed. The same bytes under the same name count once."""
        digest = hashlib.sha256(binary).hexdigest()
        self._found[name, digest] = Attempt(name, kind, digest, len(binary))

    def failed(self, name: str, kind: str, reason: object) -> None:
        """An artifact was not completed. The same failure of one name counts once."""
        text = one_line(reason)
        self._found[name, text] = Attempt(name, kind, reason=text)

    def note(self, artifact: dict[str, Any]) -> None:
        """A completed artifact as a session lists it: `{name, kind, sha256, bytes}`."""
        self._found[artifact["name"], artifact["sha256"]] = Attempt(**artifact)

    def all(self) -> list[Attempt]:
        return list(self._found.values())


def one_line(reason: object, limit: int = 300) -> str:
    """An error as one line: its type where it is an exception, its text with white space folded, and what caused it."""
    text = _folded(reason)
    if isinstance(reason, BaseException):
        first = reason
        while first.__cause__ is not None:
            first = first.__cause__
        because = _folded(first)
        text = f"{type(reason).__name__}: {text}"
        if first is not reason and because not in text:
            text = f"{because} ({text})"
    return text if len(text) <= limit else text[: max(limit, 3) - 3] + "..."


def _folded(x: object) -> str:
    return " ".join(str(x).split())
