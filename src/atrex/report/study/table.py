"""A table as data: rows of named values, and how each column prints."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atrex.report import figures

Row = dict[str, Any]
Format = Callable[[Any], str]


def text(value: Any) -> str:
    return figures.DASH if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Column:
    """`key` in the rows; `title` and `format` in the terminal, where `shown` ones appear; in files those of `data`."""

    key: str
    title: str
    format: Format = text
    shown: bool = True
    data: bool = True


@dataclass(frozen=True)
class Table:
    """`name` is that of its file. `rows` map column keys to values; None is not measured or not defined.

    A table that is not `shown` is for files alone: a long form of what another one prints in columns. The first `left`
    columns print to the left.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    shown: bool = True
    left: int = 1

    @property
    def keys(self) -> list[str]:
        """The columns of its file."""
        return [c.key for c in self.columns if c.data]

    @property
    def data(self) -> list[Row]:
        """The rows of its file."""
        return [{key: row[key] for key in self.keys} for row in self.rows]


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV under a header; an empty cell is a value that was not measured or is not defined."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
