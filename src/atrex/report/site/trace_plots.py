"""Plots of a trace data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atrex.report.site.campaign_plots import ABOVE
from atrex.report.site.plot import COLOURS, Plot, labels, significant
from atrex.traces.phases import PHASES

MOST = 15
_PHASE = {"prefill": COLOURS[0], "decode": COLOURS[1], "mixed": COLOURS[4], "none": COLOURS[8]}
_REST = "all others"
_NAMES = {"autorange": "reversed", "type": "category"}


def families_plot(document: Mapping[str, Any], data: Mapping[str, str]) -> Plot:
    """Device time of the heaviest families in milliseconds, by phase."""
    rows = document["by"]["family"]["rows"]
    bars = [(row["family"], {p: row["ns"] * s for p, s in row["phases"].items()}) for row in rows[:MOST]]
    if rest := rows[MOST:]:
        sums = {p: sum(row["ns"] * row["phases"].get(p, 0.0) for row in rest) for p in PHASES}
        bars.append((f"{len(rest)} others", sums))
    axis = labels(name for name, _ in bars)
    traces = []
    for phase in PHASES:
        if any(by.get(phase) for _, by in bars):
            traces.append({
                "type": "bar", "orientation": "h", "name": phase if phase != "none" else "no phase",
                "y": [axis[name] for name, _ in bars], "x": [significant(by.get(phase, 0.0) / 1e6) for _, by in bars],
                "marker": {"color": _PHASE[phase]},
                "hovertemplate": "%{y}: %{x:,.4g} ms<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "ms of device time"}},
              "yaxis": _NAMES, "legend": ABOVE}  # fmt: skip
    what = f"Device time of the {min(len(rows), MOST)} heaviest operator families, by phase."
    return Plot("families", "Device time by family and phase", traces, layout, what, data, height=120 + 26 * len(bars))


def applications_plot(document: Mapping[str, Any], data: Mapping[str, str]) -> Plot:
    """The share of each family in the applications' device time."""
    applications = document["applications"]
    heaviest = [row["family"] for row in document["by"]["family"]["rows"]][: len(COLOURS) - 1]
    names = list(labels(app["application"] for app in applications).values())
    whole = [app["ns"] or 1.0 for app in applications]
    paired = list(zip(applications, whole, strict=True))
    shares = {f: [app["families"].get(f, 0.0) / ns for app, ns in paired] for f in heaviest}
    left = [max(0.0, app["ns"] / ns - sum(of[i] for of in shares.values())) for i, (app, ns) in enumerate(paired)]
    traces = [
        {"type": "bar", "orientation": "h", "name": family, "y": names, "x": [significant(s) for s in values],
         "marker": {"color": COLOURS[i % len(COLOURS)]},
         "hovertemplate": "%{y}: %{x:.1%}<extra>%{fullData.name}</extra>"}
        for i, (family, values) in enumerate([*shares.items(), (_REST, left)])
    ]  # fmt: skip
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "share of the application's time"}, "tickformat": ".0%"},
              "yaxis": _NAMES, "legend": {"traceorder": "normal"}}  # fmt: skip
    what = f"Device time of {len(names)} applications, divided by operator family."
    return Plot(
        "by-application", "Families by application", traces, layout, what, data, height=max(300, 120 + 44 * len(names))
    )


def weights_plot(weights: Mapping[str, Any], published: Mapping[str, float], data: Mapping[str, str]) -> Plot:
    """Weights of the operators in these traces beside the published ones."""
    names = list(weights["weights"])
    sides = [("these traces", weights["weights"], COLOURS[0]), ("published", published, COLOURS[8])]
    traces = [
        {"type": "bar", "orientation": "h", "name": side, "y": list(labels(names).values()),
         "x": [significant(of.get(n, 0.0)) for n in names], "marker": {"color": colour},
         "hovertemplate": "%{y}: %{x:.2%}<extra>%{fullData.name}</extra>"}
        for side, of, colour in sides
    ]  # fmt: skip
    layout = {"barmode": "group", "xaxis": {"title": {"text": "weight"}, "tickformat": ".0%"},
              "yaxis": _NAMES, "legend": ABOVE}  # fmt: skip
    what = f"Importance weights of {len(names)} operators in these traces, beside the published ones."
    return Plot(
        "weights-plot", "Weights beside the published ones", traces, layout, what, data, height=120 + 34 * len(names)
    )


def shapes_plot(entry: Mapping[str, Any], data: Mapping[str, str]) -> Plot:
    """How the device time of one operator is spread over its shapes, heaviest first."""
    rows = entry["rows"][:60]
    traces = [{
        "type": "bar", "x": [str(i) for i in range(1, len(rows) + 1)], "y": [significant(row["share"]) for row in rows],
        "text": [_told(row) for row in rows], "marker": {"color": COLOURS[0]}, "textposition": "none",
        "hovertemplate": "shape %{x}: %{y:.1%}<br>%{text}<extra></extra>",
    }]  # fmt: skip
    layout = {"xaxis": {"title": {"text": "shape, heaviest first"}, "type": "category"},
              "yaxis": {"title": {"text": "share of its time"}, "tickformat": ".0%"}, "showlegend": False}  # fmt: skip
    what = f"Share of {entry['operator']}'s device time in {len(rows)} of {entry['shapes']} shapes."
    return Plot("spread", "Spread over shapes", traces, layout, what, data, height=320)


def _told(row: Mapping[str, Any]) -> str:
    words = ", ".join(f"{name} {json.dumps(dim['value'])}" for name, dim in row["dims"].items())
    return f"{row['calls']} calls, " + (words if len(words) <= 120 else words[:119] + "…")
