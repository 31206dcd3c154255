"""Texts of a kernel replaced by others, as scripts of sweeps and campaigns say it."""

from __future__ import annotations

from collections.abc import Iterable


class NotOnce(ValueError):
    """A text to replace that is there `count` times, and not once."""

    def __init__(self, old: str, count: int):
        super().__init__(f"{count} times, expected once: {old!r}")
        self.old, self.count = old, count


def replaced(text: str, changes: Iterable[tuple[str, str]]) -> str:
    """`text` with each old text, which must be there exactly once by then, replaced by its new one. Raises NotOnce."""
    for old, new in changes:
        if text.count(old) != 1:
            raise NotOnce(old, text.count(old))
        text = text.replace(old, new)
    return text
