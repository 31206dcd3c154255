"""What a page consists of beside tables and plots. `part` is the macro of `parts.html` that draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from atrex.report.site.table import Cell


@dataclass(frozen=True)
class Text:
    """A paragraph; `lead` is what a page begins with."""

    part: ClassVar[str] = "text_block"
    text: str
    lead: bool = False
    id: str | None = None


@dataclass(frozen=True)
class Heading:
    """A heading over what follows, to which the blocks after it belong."""

    part: ClassVar[str] = "heading_block"
    title: str
    id: str


@dataclass(frozen=True)
class Figures:
    """Figures at a glance: (name, cell)."""

    part: ClassVar[str] = "figures_block"
    pairs: Sequence[tuple[str, Cell]]


@dataclass(frozen=True)
class Facts:
    """Names and values in two columns."""

    part: ClassVar[str] = "facts_block"
    pairs: Sequence[tuple[str, Cell]]


@dataclass(frozen=True)
class Source:
    """A text as it stands in a file: source, a log, a record. `id` is where links to it go."""

    part: ClassVar[str] = "source_block"
    title: str
    text: str
    data: Mapping[str, str] = field(default_factory=dict)
    open: bool = False
    id: str | None = None


@dataclass(frozen=True)
class Notes:
    """Lines of small print."""

    part: ClassVar[str] = "notes_block"
    lines: Sequence[str]
