"""Plots of a campaign: S over the attempts, what was predicted against what was measured, the rounds of a contest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atrex.report.site.plot import COLOURS, Plot, short, significant

# Outcome -> colour and symbol; those that were taken in are filled.
_STYLES = {
    "baseline": (COLOURS[0], "diamond"), "promoted": (COLOURS[2], "circle"), "no_gain": (COLOURS[8], "circle-open"),
    "slower_shape": (COLOURS[1], "square-open"), "failed": (COLOURS[3], "x"), "fallback": (COLOURS[6], "cross"),
    "duplicate": (COLOURS[4], "triangle-up-open"), "not_selected": (COLOURS[5], "diamond-open"),
    "undecided": (COLOURS[9], "hexagon-open"),
}  # fmt: skip
_OTHER = (COLOURS[7], "star")
ABOVE = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}


def timeline_plot(document: Mapping[str, Any], page: Callable[[int], str], data: Mapping[str, str]) -> Plot:
    """S of every attempt by number; the line is the accepted kernel. Attempts without an S stand at 0."""
    rows = document["iterations"]
    traces: list[dict[str, Any]] = []
    if rows:
        traces.append({
            "type": "scatter", "mode": "lines", "name": "accepted kernel", "line": {"shape": "hv", "color": COLOURS[2]},
            "x": [row["number"] for row in rows], "y": [significant(row["incumbent_S"]) for row in rows],
            "hoverinfo": "skip",
        })  # fmt: skip
    for outcome in dict.fromkeys(row["outcome"] for row in rows):
        mine = [row for row in rows if row["outcome"] == outcome]
        traces.append(_markers(outcome, mine, page) | {
            "x": [row["number"] for row in mine], "y": [significant(row["S_i"] or 0.0) for row in mine],
            "text": [_told(row) for row in mine], "hovertemplate": "attempt %{x}: S %{y:.4g}<br>%{text}<extra></extra>",
        })  # fmt: skip
    restarts = [mask["after"] + 0.5 for mask in document["masks"]]
    layout = {
        "xaxis": {"title": {"text": "attempt"}, "dtick": 1 if len(rows) <= 25 else None},
        "yaxis": {"title": {"text": "S, fraction of the roofline"}, "rangemode": "tozero"},
        "shapes": [{"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper",
                    "line": {"dash": "dot", "color": COLOURS[8]}} for x in restarts],
        "annotations": [{"x": x, "y": 1, "yref": "paper", "text": "restart", "showarrow": False, "xanchor": "left",
                         "font": {"size": 11}} for x in restarts],
        "legend": ABOVE,
    }  # fmt: skip
    what = f"S of {len(rows)} attempts, with the accepted kernel's S as a line and restarts as dotted lines."
    return Plot("timeline", "Timeline", traces, layout, what, data)


def gains_plot(document: Mapping[str, Any], page: Callable[[int], str], data: Mapping[str, str]) -> Plot:
    """Predicted against measured time ratio, with the interval that the contest gave."""
    rows = [row for row in document["iterations"] if row["ratio"] is not None and row["predicted"] is not None]
    traces = []
    for outcome in dict.fromkeys(row["outcome"] for row in rows):
        mine = [row for row in rows if row["outcome"] == outcome]
        traces.append(_markers(outcome, mine, page) | {
            "x": [significant(row["predicted"]) for row in mine], "y": [significant(row["ratio"]) for row in mine],
            "error_y": {
                "type": "data", "symmetric": False, "thickness": 1,
                "array": [significant(_end(row, "high") - row["ratio"]) for row in mine],
                "arrayminus": [significant(row["ratio"] - _end(row, "low")) for row in mine],
            },
            "text": [_told(row) for row in mine],
            "hovertemplate": "predicted %{x:.3g}x, measured %{y:.4g}x<br>%{text}<extra></extra>",
        })  # fmt: skip
    ends = [value for row in rows for value in (row["predicted"], _end(row, "low"), _end(row, "high"))]
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    line = {"type": "line", "layer": "below"}
    layout = {
        "xaxis": {"title": {"text": "predicted, old time over new"}},
        "yaxis": {"title": {"text": "measured"}},
        "shapes": [
            line | {"x0": low, "x1": high, "y0": low, "y1": high, "line": {"dash": "dash", "color": COLOURS[8]}},
            line | {"x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "line": {"width": 1, "color": COLOURS[8]}},
        ],
        "legend": ABOVE,
    }  # fmt: skip
    what = f"Predicted against measured gains of {len(rows)} contested attempts; on the dashed line they agree."
    return Plot("gains", "Predictions against measurements", traces, layout, what, data)


def contest_plot(contest: Mapping[str, Any], record: str) -> Plot:
    """The ratio of every round of a contest, a trace a shape; rounds that were measured again follow."""
    traces = []
    for i, (shape, pairs) in enumerate(contest["times_us"].items()):
        pairs = [*pairs, *contest["again_us"].get(shape, ())]
        traces.append({
            "type": "scatter", "mode": "markers", "name": f"shape {short(str(shape))}",
            "marker": {"color": COLOURS[i % len(COLOURS)]}, "x": list(range(1, len(pairs) + 1)),
            "y": [significant(old / new) for old, new in pairs],
            "hovertemplate": "round %{x}: %{y:.4g}x<extra></extra>",
        })  # fmt: skip
    rounds = max((len(t["x"]) for t in traces), default=0)
    layout = {
        "xaxis": {"title": {"text": "round"}, "dtick": 1 if rounds <= 30 else None},
        "yaxis": {"title": {"text": "old time over new"}},
        "shapes": [{"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1,
                    "line": {"width": 1, "color": COLOURS[8]}}],
        "legend": ABOVE,
    }  # fmt: skip
    notes = [
        f"decision {contest['number']} of the campaign, at an error of {contest['error']:.3g}: "
        + contest["why"].replace("_", " ")
    ]
    what = f"Time of the incumbent over time of the candidate in {rounds} rounds, by shape."
    return Plot("contest", "Rounds of the contest", traces, layout, what, {"JSON": record}, notes, height=340)


def _markers(outcome: str, rows: list[dict[str, Any]], page: Callable[[int], str]) -> dict[str, Any]:
    colour, symbol = _STYLES.get(outcome, _OTHER)
    return {
        "type": "scatter", "mode": "markers", "name": outcome.replace("_", " "),
        "marker": {"color": colour, "symbol": symbol, "size": 11}, "links": [page(row["number"]) for row in rows],
    }  # fmt: skip


def _end(row: Mapping[str, Any], name: str) -> float:
    """An end of the interval; the ratio itself where so few rounds bound it on that side by nothing."""
    return row["ratio"] if row[name] is None else row[name]


def _told(row: Mapping[str, Any]) -> str:
    change = (row["plan"] or {}).get("change", "")
    return short(f"{row['category']}: {change}" if change else row["category"], 90)
