"""Plots on pages: Plotly figures as data, drawn by the site's script in the colours of the page.

Plotly reads a little HTML in every string that it shows, links included. All strings are therefore escaped here, once;
only `hovertemplate`, which is ours, is passed on as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

# Each has a contrast of 3 to 1 or more against the light and the dark background of the stylesheet.
COLOURS = (
    "#4e79a7", "#c8701a", "#3f9142", "#d1495b", "#7b68c8", "#2c8f97", "#a8678f", "#93702f", "#7f7f7f", "#5b8c2a",
)  # fmt: skip
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star", "hexagon", "pentagon")
_RAW = ("hovertemplate",)


@dataclass(frozen=True)
class Plot:
    """A figure: `traces` and `layout` as Plotly has them, `alt` is what it shows in words, `data` as in a table.

    A trace may have `links`, one path from the site's root a point (None for no link), or `link` with `keys`: a path
    to which each point's key is added. A click on the point goes there.
    """

    part: ClassVar[str] = "plot"
    name: str
    title: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    alt: str
    data: Mapping[str, str]
    notes: Sequence[str] = ()
    height: int = 420

    @property
    def points(self) -> int:
        """How many points are drawn."""
        return sum(
            sum(map(len, t["z"])) if "z" in t else len(t.get("x") or t.get("y") or ()) for t in self.traces
        )  # fmt: skip


@dataclass
class Styles:
    """A colour and a symbol for each name, the same all over the site; no two of the first hundred names share both."""

    names: Sequence[str]
    _index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._index = {name: i for i, name in enumerate(self.names)}

    def marker(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"color": self.colour(name), "symbol": self.symbol(name), **fields}

    def colour(self, name: str) -> str:
        return COLOURS[self._index[name] % len(COLOURS)]

    def symbol(self, name: str) -> str:
        i = self._index[name]
        return SYMBOLS[(i + i // len(COLOURS)) % len(SYMBOLS)]


def figure(plot: Plot) -> dict[str, Any]:
    """The plot as the site's script reads it: strings escaped for Plotly, links kept apart from what Plotly sees."""
    links = [{key: t[key] for key in ("links", "link", "keys") if key in t} for t in plot.traces]
    traces = [{k: v for k, v in t.items() if k not in ("links", "link", "keys")} for t in plot.traces]
    return {"traces": _escaped(traces), "layout": _escaped(plot.layout), "links": links}


def plain(text: str) -> str:
    """A text that Plotly shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def short(text: str, length: int = 36) -> str:
    """A name that fits an axis or a legend: its end, where names mostly differ."""
    return text if len(text) <= length else "…" + text[1 - length :]


def labels(names: Iterable[str], length: int = 36) -> dict[str, str]:
    """Names as an axis or a legend shows them, each of its own: an axis takes equal labels for one place."""
    made: dict[str, str] = {}
    for name in dict.fromkeys(names):
        label = base = short(name, length)
        n = 1
        while label in made.values():
            n += 1
            label = f"{base} ({n})"
        made[name] = label
    return made


def significant(value: float | None, digits: int = 5) -> float | None:
    """A figure with as many digits as a plot can show, so that pages stay small."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def _escaped(value: Any, key: str | None = None) -> Any:
    if isinstance(value, str):
        return value if key in _RAW else plain(value)
    if isinstance(value, Mapping):
        return {k: _escaped(v, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(v, key) for v in value]
    return value
