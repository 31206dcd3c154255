"""Tables on pages: cells with a text, a value to sort by and a link to what they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape as escape_html
from typing import Any, ClassVar, NamedTuple

from atrex.report.study import table as study

Link = Callable[[Mapping[str, Any]], str | None]
"""From a row to the page or file that a cell of it comes from, as a path from the site's root."""


class Cell(NamedTuple):
    """`sort` orders the column (the text does where it is None); `href` is a path from the site's root or an address.

    `kind` is a class of the stylesheet (`passed`, `failed`, `error`, `skipped`, `code`).
    """

    text: str
    sort: float | str | None = None
    href: str | None = None
    hint: str | None = None
    kind: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Heading:
    """A column. `number` aligns to the right; `choose` offers its values as a menu beside the filter.

    With `many`, a cell of a column to choose from holds several values with ", " between them.
    """

    title: str
    number: bool = True
    choose: bool = False
    hint: str | None = None
    many: bool = False


@dataclass(frozen=True)
class TableView:
    """A table on a page. `name` is its id there; `data` are links to it as data: label -> path from the site's root."""

    part: ClassVar[str] = "table"
    name: str
    title: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    data: Mapping[str, str]
    notes: Sequence[str] = ()
    empty: str = "nothing to show"


def number(value: float | None, text: str, href: str | None = None, **fields: Any) -> Cell:
    """A cell of a figure, sorted by its value; one that was not measured sorts last either way."""
    return Cell(text, value, href if value is not None else None, **fields)


@lru_cache(maxsize=100_000)
def escape(text: str) -> str:
    """A text as HTML, in an element or a quoted attribute. Names and addresses stand in a site a thousand times."""
    return escape_html(text)


def body(table: TableView, url: Callable[[str], str]) -> str:
    """The rows as HTML, every value escaped; `url` gives links as the page writes them.

    A site has some hundred thousand cells: in a template of their own they took most of the time of a report.
    """
    classes = ["num" if h.number else "" for h in table.headings]
    parts: list[str] = []
    for row in table.rows:
        parts.append("<tr>")
        for align, (text, sort, href, hint, kind, id) in zip(classes, row, strict=True):
            parts.append("<td")
            if sort is not None:
                order = escape(sort) if isinstance(sort, str) else f"{sort:.9g}"
                parts.append(f' data-sort="{order}"')
            if align or kind:
                parts.append(f' class="{escape(f"{align} {kind or str()}".strip())}"')
            if hint:
                parts.append(f' title="{escape(hint)}"')
            if id:
                parts.append(f' id="{escape(id)}"')
            said = escape(text)
            parts.append(f'><a href="{escape(url(href))}">{said}</a></td>' if href else f">{said}</td>")
        parts.append("</tr>\n")
    return "".join(parts)


def view(
    table: study.Table,
    data: Mapping[str, str],
    links: Mapping[str, Link] | None = None,
    choose: Iterable[str] = (),
    hints: Mapping[str, str] | None = None,
    name: str | None = None,
) -> TableView:
    """A table of the study as it stands in the terminal. `links` by column key; `choose` names columns with a menu.

    `name` is for a page that has the table of several groups.
    """
    shown = [c for c in table.columns if c.shown]
    links, chosen, hints = links or {}, set(choose), hints or {}
    headings = [
        Heading(c.title, _numeric(table.rows, c.key), c.key in chosen, hints.get(c.key)) for c in shown
    ]  # fmt: skip
    rows = []
    for row in table.rows:
        cells = []
        for c in shown:
            value = row[c.key]
            href = links[c.key](row) if c.key in links and value is not None else None
            cells.append(Cell(c.format(value), value if isinstance(value, int | float) else None, href))
        rows.append(cells)
    return TableView(name or table.name, table.title, headings, rows, data, table.notes)


def _numeric(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    values = [row[key] for row in rows if row[key] is not None]
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
