"""Plots of one operator: its units under the roofline, S by shape, times by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from atrex.errors import UserError
from atrex.hardware.chip import CPU, Chip, load_chip
from atrex.report.site.cells import s_of
from atrex.report.site.entries import Entry
from atrex.report.site.plot import Plot, Styles, labels, short, significant
from atrex.roofline.work import Work
from atrex.scoring.records import UnitRecord
from atrex.scoring.units import headline, timed

Units = Mapping[str, Sequence[UnitRecord]]
"""Records of the operator by the name of their set."""
SHAPE_LETTERS = 14  # of an id on an axis
_CEILING = {"color": "#7f7f7f", "width": 1.5}


def roofline_plot(
    name: str, operator: str, chip: str, entries: Sequence[Entry], units: Units, works: Mapping[str, Work],
    styles: Styles, data: Mapping[str, str],
) -> Plot:  # fmt: skip
    """Throughput against arithmetic intensity, each unit a point; without arithmetic, bandwidth against bytes.

    The ceiling of a shape is its roofline time as recorded; a chip of the list adds its memory and peak lines.
    """
    arithmetic = any(work.total_flops for work in works.values())
    what, unit = ("throughput", "FLOP/s") if arithmetic else ("bandwidth", "B/s")
    at = {shape: p for shape, w in works.items() if (p := _place(w, arithmetic))}
    traces: list[dict[str, Any]] = []
    ceiling: dict[str, tuple[float, float]] = {}
    named = labels(e.name for e in entries)
    for entry in entries:
        points = []
        for record in units.get(entry.name, ()):
            if record.shape not in at or record.held_out or record.roofline is None:
                continue
            x, amount = at[record.shape]
            if record.roofline.roofline_us > 0:
                ceiling[record.shape] = x, amount / record.roofline.roofline_us * 1e6
            if timed(record):
                points.append((record, x, amount / record.performance.median_us * 1e6))
        if points:
            traces.append({
                "type": "scatter", "mode": "markers", "name": named[entry.name],
                "x": [significant(x) for _, x, _ in points], "y": [significant(y) for _, _, y in points],
                "customdata": [short(record.shape) for record, _, _ in points],
                "marker": styles.marker(entry.name, size=7, opacity=0.85),
                "hovertemplate": "shape %{customdata}<br>%{x:.4s}, %{y:.4s}" + unit, **_links(entry, points),
            })  # fmt: skip
    roof = sorted(ceiling.values())
    lines = _chip_lines(chip, arithmetic, roof, traces)
    traces.append({
        "type": "scatter", "mode": "markers", "name": "roofline of each shape", "x": [significant(x) for x, _ in roof],
        "y": [significant(y) for _, y in roof], "marker": {"symbol": "line-ew-open", "size": 13, "color": "#7f7f7f"},
        "hovertemplate": "%{x:.4s}, %{y:.4s}" + unit,
    })  # fmt: skip
    axis = "arithmetic intensity, FLOP/byte" if arithmetic else "bytes read and written"
    shown = [x for t in traces for x in t["x"]], [y for t in traces for y in t["y"]]
    layout = {
        "xaxis": _log_axis(axis, shown[0], 3), "yaxis": _log_axis(f"{what}, {unit}", shown[1], 2), "showlegend": True,
        "legend": {"font": {"size": 12}},
    }  # fmt: skip
    drawn = sum(len(t["x"]) for t in traces)
    alt = f"{what} of each timed unit of {operator} on {chip} under the ceiling of its shape: {drawn} points."
    if not drawn:
        alt = f"no unit of {operator} on {chip} has a time and a shape whose work is known."
    return Plot(name, f"Roofline on {chip}", [*lines, *traces], layout, alt, data, height=460)


def s_plot(
    operator: str, entries: Sequence[Entry], units: Units, shapes: Sequence[str], styles: Styles,
    data: Mapping[str, str],
) -> Plot:  # fmt: skip
    """S_j by shape, a colour and symbol a set."""
    named, place = labels(e.name for e in entries), labels(shapes, SHAPE_LETTERS)
    traces = []
    for entry in entries:
        points = [(r, r.shape, s) for r in headline(units.get(entry.name, ())) if (s := s_of(r)) is not None]
        if points:
            traces.append({
                "type": "scatter", "mode": "markers", "name": named[entry.name],
                "x": [place[shape] for _, shape, _ in points], "y": [significant(s) for _, _, s in points],
                "marker": styles.marker(entry.name, size=7, opacity=0.85),
                "hovertemplate": "shape %{x}<br>S %{y:.4g}", **_links(entry, points),
            })  # fmt: skip
    highest = max((y for t in traces for y in t["y"]), default=1.0)
    layout = {
        "xaxis": _shape_axis(list(place.values())),
        "yaxis": {"title": {"text": "S"}, "range": [0, min(1.02, 1.15 * highest)]}, "showlegend": True,
        "legend": {"font": {"size": 12}},
    }  # fmt: skip
    alt = f"S of {operator} by shape" if traces else f"no unit of {operator} has an S."
    return Plot("s-by-shape", "S by shape", traces, layout, alt, data)


def times_plot(
    name: str, operator: str, chip: str, entries: Sequence[Entry], units: Units, shapes: Sequence[str], styles: Styles,
    data: Mapping[str, str],
) -> Plot:  # fmt: skip
    """Median times by shape against the roofline, the baselines and production, on a logarithmic axis."""
    named, place = labels(e.name for e in entries), labels(shapes, SHAPE_LETTERS)
    traces, others = [], {}
    for entry in entries:
        points = []
        for r in headline(units.get(entry.name, ())):
            if timed(r):
                points.append((r, r.shape, r.performance.median_us))
            for baseline, us in (r.baselines or {}).items():
                others.setdefault(f"{baseline}{_whose(r, baseline)}", {})[r.shape] = us
            if r.roofline is not None:
                others.setdefault("roofline", {})[r.shape] = r.roofline.roofline_us
        if points:
            traces.append({
                "type": "scatter", "mode": "markers", "name": named[entry.name], "x": [place[s] for _, s, _ in points],
                "y": [significant(us) for _, _, us in points],
                "marker": styles.marker(entry.name, size=7, opacity=0.85),
                "hovertemplate": "shape %{x}<br>%{y:.4g} us", **_links(entry, points),
            })  # fmt: skip
    said = labels(others)
    for k, (other, by_shape) in enumerate(sorted(others.items(), key=lambda o: o[0] != "roofline")):
        traces.append({
            "type": "scatter", "mode": "markers", "name": said[other], "x": [place[shape] for shape in by_shape],
            "y": [significant(us) for us in by_shape.values()],
            "marker": {"symbol": ("line-ew-open", "line-ns-open", "asterisk-open", "hash-open")[k % 4], "size": 11,
                       "color": "#7f7f7f" if other == "roofline" else "#a8678f"},
            "hovertemplate": "shape %{x}<br>%{y:.4g} us",
        })  # fmt: skip
    layout = {
        "xaxis": _shape_axis(list(place.values())),
        "yaxis": _log_axis("median time, us", [y for t in traces for y in t["y"]], 1.5), "showlegend": True,
        "legend": {"font": {"size": 12}},
    }  # fmt: skip
    alt = f"median times of {operator} by shape on {chip}" if traces else f"no unit of {operator} on {chip} has a time."
    return Plot(name, f"Times on {chip}", traces, layout, alt, data)


def _log_axis(title: str, values: Sequence[float], room: float) -> dict[str, Any]:
    """A logarithmic axis from the least value over `room` to the largest times it, its ticks not crowded."""
    axis: dict[str, Any] = {"type": "log", "title": {"text": title}, "exponentformat": "SI"}
    positive = [v for v in values if v > 0]
    if positive:
        low, high = min(positive) / room, max(positive) * room
        axis |= {"range": [log10(low), log10(high)], "dtick": 1 if high / low > 1000 else "D2"}
    return axis


def _shape_axis(shapes: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "category", "categoryorder": "array", "categoryarray": shapes,
        "range": [-0.5, len(shapes) - 0.5], "title": {"text": "shape"},
    }  # fmt: skip


def _whose(record: UnitRecord, baseline: str) -> str:
    return f" ({record.production})" if baseline == "production" and record.production else ""


def _place(work: Work, arithmetic: bool) -> tuple[float, float] | None:
    """(x, what is done in one call) of a shape; None for one that such a plot cannot place."""
    if not work.total_bytes or (arithmetic and not work.total_flops):
        return None
    return (work.total_flops / work.total_bytes, work.total_flops) if arithmetic else (work.total_bytes,) * 2


def _links(entry: Entry, points: Sequence[tuple[UnitRecord, Any, Any]]) -> dict[str, Any]:
    """Links to the points' records, short where one page has them all."""
    hrefs = [entry.href(record) for record, *_ in points]
    pages = {href.partition("#")[0] for href in hrefs}
    if len(pages) > 1:
        return {"links": hrefs}
    return {"link": f"{pages.pop()}#", "keys": [href.partition("#")[2] for href in hrefs]}


def _chip_lines(
    chip: str, arithmetic: bool, roof: Sequence[tuple[float, float]], traces: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:  # fmt: skip
    """The chip's cited ceilings over the span of the points; none for a CPU, whose ceilings are those of its shapes."""
    xs = [x for x, _ in roof] + [x for t in traces for x in t["x"]]
    known = _chip(chip)
    if known is None or not xs:
        return []
    low, high = min(xs) / 3, max(xs) * 3
    memory = known.memory_bandwidth
    ends = [(x, x * memory if arithmetic else memory) for x in (low, high)]
    lines = [("memory", ends)]
    tallest = max([y for _, y in roof] + [y for t in traces for y in t["y"]]) * 10
    if arithmetic:
        for engine, peaks in known.peaks.items():
            for dtype, peak in peaks.items():
                from_x = peak / memory
                if from_x < high and peak < tallest:
                    lines.append((f"{engine} {dtype}", [(max(low, from_x), peak), (high, peak)]))
        if len(lines) > 1:  # no dtype of this chip goes higher than its fastest
            top = max(max(peaks.values()) for peaks in known.peaks.values() if peaks)
            lines[0] = ("memory", [(low, low * memory), (min(high, top / memory), min(high * memory, top))])
    return [
        {
            "type": "scatter", "mode": "lines", "name": f"{chip} {name}", "x": [significant(x) for x, _ in points],
            "y": [significant(y) for _, y in points], "hovertemplate": "%{y:.4s}",
            "line": {**_CEILING, "dash": "solid" if name == "memory" else "dot"},
            "legendgroup": "ceilings", "showlegend": name == "memory",
        }
        for name, points in lines
    ]  # fmt: skip


def _chip(name: str) -> Chip | None:
    if name == CPU:
        return None
    try:
        return load_chip(name)
    except UserError:
        return None
