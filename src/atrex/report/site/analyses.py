"""Pages of the paper's analyses: correctness illusion, difficulty, regimes, tokens, failures, the optimizer's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atrex.report.site.blocks import Heading, Text
from atrex.report.site.entries import Entries, Entry, operator_href
from atrex.report.site.overview import group_title
from atrex.report.site.page import Nav, Site
from atrex.report.site.plot import COLOURS, Plot, labels, significant
from atrex.report.site.table import Link, TableView, view
from atrex.report.study.difficulty import REGIMES
from atrex.report.study.document import Group
from atrex.report.study.table import Row, Table

Data = Mapping[str, Mapping[str, str]]
"""Links to the data of every table of the study, by the table's name."""
_AGAINST = "S_agg against output tokens of each set; up and to the left is better."


def analyses(site: Site, entries: Entries, data: Data) -> None:
    """Write a page for each analysis that has something to show; `navigation` names the same ones."""
    for nav, lead, make in _pages(entries):
        blocks: list[Any] = [Text(lead, lead=True)]
        for i, group in enumerate(entries.study.groups, 1):
            if len(entries.study.groups) > 1:
                blocks.append(Heading(group_title(i, group), f"group-{i}"))
            blocks += make(i, _tables(group), group, entries, data)
        site.page(nav.href, "page.html", title=nav.title, blocks=blocks, plots=True)
    if entries.study.pair is not None:
        _optimizer(site, entries, data)


def navigation(entries: Entries) -> list[Nav]:
    """The analyses' entries of the navigation."""
    pair = [Nav("Optimizer", "optimizer.html")] if entries.study.pair is not None else []
    return [nav for nav, _, _ in _pages(entries)] + pair


Make = Callable[[int, Mapping[str, Table], Group, Entries, Data], list[Any]]


def _pages(entries: Entries) -> list[tuple[Nav, str, Make]]:
    if not entries.study.groups:
        return []
    return [
        (Nav("Correctness illusion", "illusion.html"),
         "How many operators are fully correct, against how many the target DSL really computes (a mean share of the "
         "device time over 50 %).", _illusion),
        (Nav("Difficulty", "difficulty.html"),
         "Which operators which system solves: the hardest first, each system weighed alike.", _difficulty),
        (Nav("Regimes", "regimes.html"),
         "S over memory-bound and over compute-bound operators.", _regimes),
        (Nav("Tokens", "tokens.html"),
         "What generation took, against what it gave. Sets that an agent was asked for here are in it.", _tokens),
        (Nav("Failures", "failures.html"),
         "At which gate units fail, and why.", _failures),
    ]  # fmt: skip


def _tables(group: Group) -> dict[str, Table]:
    return {t.name: t for t in group.tables}


def _illusion(i: int, tables: Mapping[str, Table], group: Group, entries: Entries, data: Data) -> list[Any]:
    table = tables["illusion"]
    bars = {"fully_correct": "fully correct", "dominant": "DSL-dominant", "both": "both"}
    plot = _bars(f"illusion-plot-{i}", "Fully correct against DSL-dominant operators", table, bars, "operators",
                 entries, data["illusion"])  # fmt: skip
    return [plot, _view(i, table, entries, data)]


def _difficulty(i: int, tables: Mapping[str, Table], group: Group, entries: Entries, data: Data) -> list[Any]:
    table, long = tables["difficulty"], tables["operators"]
    operators = [row["operator"] for row in reversed(table.rows)]
    systems = list(dict.fromkeys(row["system"] for row in long.rows))
    made = []
    for key, title in (("pass_rate", "Pass rate by operator and system"), ("s", "S_i by operator and system")):
        found = {(row["operator"], row["system"]): row[key] for row in long.rows}
        trace = {
            "type": "heatmap", "x": list(labels(systems, 30).values()), "y": operators,
            "z": [[significant(found.get((o, s))) for s in systems] for o in operators],
            "colorscale": "Cividis", "zmin": 0, "zmax": 1, "xgap": 1, "ygap": 1, "colorbar": {"thickness": 12},
            "hovertemplate": "%{y}<br>%{x}<br>%{z:.3g}<extra></extra>", "hoverongaps": False,
        }  # fmt: skip
        layout = {
            "xaxis": {"type": "category", "tickangle": -90 if len(systems) > 3 else 0},
            "yaxis": {"type": "category", "tickmode": "linear"},
            "margin": {"l": 60, "r": 10, "t": 30, "b": 10},
        }
        height = 120 + 19 * len(operators) + (180 if len(systems) > 3 else 0)
        alt = f"{title}: {len(operators)} operators, {len(systems)} systems; a gap was not judged"
        made.append(Plot(f"difficulty-{key}-{i}", title, [trace], layout, alt, data["operators"], height=height))
    links: dict[str, Link] = {
        key: (lambda row: operator_href(row["operator"])) for key in table.rows[0] if key != "regime"
    } if table.rows else {}  # fmt: skip
    return [view_of(i, table, data, links, choose=("regime",)), *made]


def _regimes(i: int, tables: Mapping[str, Table], group: Group, entries: Entries, data: Data) -> list[Any]:
    table = tables["regimes"]
    bars = {f"{regime}_s": f"{regime}-bound" for regime in REGIMES}
    return [_bars(f"regimes-plot-{i}", "S by regime", table, bars, "median of S_i", entries, data["regimes"]),
            _view(i, table, entries, data)]  # fmt: skip


def _tokens(i: int, tables: Mapping[str, Table], group: Group, entries: Entries, data: Data) -> list[Any]:
    table = tables["tokens"]
    known = [row for row in table.rows if row["output_tokens"]]
    named = labels((row["set"] for row in known), 40)
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": named[row["set"]], "x": [row["output_tokens"]],
            "y": [significant(row["s_agg"])], "marker": entries.styles.marker(_entry(entries, row).name, size=11),
            "links": [_entry(entries, row).page],
            "hovertemplate": "%{x:,} tokens<br>S_agg %{y:.4g}",
        }
        for row in known
    ]  # fmt: skip
    layout = {"xaxis": {"title": {"text": "output tokens"}, "type": "log"},
              "yaxis": {"title": {"text": "S_agg"}, "rangemode": "tozero"}, "showlegend": True}  # fmt: skip
    alt = _AGAINST if known else "no set here has token counts from the agent that made it."
    return [Plot(f"tokens-plot-{i}", "Tokens against quality", traces, layout, alt, data["tokens"]),
            _view(i, table, entries, data)]  # fmt: skip


def _failures(i: int, tables: Mapping[str, Table], group: Group, entries: Entries, data: Data) -> list[Any]:
    table, long = tables["failures"], tables["failures_by_set"]
    names = list(dict.fromkeys(row["set"] for row in long.rows))
    traces = []
    for k, row in enumerate(table.rows):
        values = [row[f"units_{name}"] for name in names]
        if any(values):
            traces.append({
                "type": "bar", "orientation": "h", "name": f"{row['stage']}: {row['category']}",
                "y": list(labels(names).values()), "x": values, "marker": {"color": COLOURS[k]},
                "links": [_entry(entries, {"set": name}).page for name in names],
                "hovertemplate": "%{y}<br>%{x} units",
            })  # fmt: skip
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "failing units"}},
              "yaxis": {"type": "category", "autorange": "reversed"},
              "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}}  # fmt: skip
    alt = "failing units of each set by gate and category" if traces else "no unit failed"
    plot = Plot(f"failures-plot-{i}", "Failing units by set", traces, layout, alt, data["failures_by_set"],
                height=210 + 30 * len(names))  # fmt: skip
    links: dict[str, Link] = {
        f"units_{e.set.name}": (lambda row, page=e.page: f"{page}#failures") for e in entries.of(group)
    }
    return [plot, view_of(i, table, data, links)]


def _optimizer(site: Site, entries: Entries, data: Data) -> None:
    table = entries.study.pair
    vanilla, aka = (entries.entry(s) for s in entries.study.pair_sets)

    def leads(entry: Entry) -> Link:
        def link(row: Mapping[str, Any]) -> str | None:
            found = entry.by_unit.get((row["operator"], row["shape"], False))
            return found.href if found else entry.operator_page(row["operator"])

        return link

    links = {c.key: leads(aka) for c in table.columns if c.shown} | {
        "operator": lambda row: operator_href(row["operator"])
    }
    units = [row for row in table.rows if row["speedup"] is not None and row["shape"] is not None]
    trace = {
        "type": "bar", "x": [f"{row['operator']} {row['shape']}" for row in units],
        "y": [significant(row["speedup"]) for row in units], "marker": {"color": COLOURS[0]},
        "links": [leads(aka)(row) for row in units], "hovertemplate": "%{x}<br>%{y:.3g}x<extra></extra>",
    }  # fmt: skip
    layout = {"yaxis": {"title": {"text": "T vanilla / T AKA"}, "rangemode": "tozero"}, "xaxis": {"type": "category"},
              "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1,
                          "line": {"color": "#7f7f7f", "dash": "dash"}}]}  # fmt: skip
    blocks = [
        Text(f"{vanilla.name} without the optimizer, {aka.name} with it. Single measurements: a comparison of its own "
             "says whether a difference is more than noise.", lead=True),
        Plot("speedups", "Speedup by unit", [trace], layout, "time before over time after, by unit", data["pair"]),
        view_of(0, table, data, links),
    ]  # fmt: skip
    site.page("optimizer.html", "page.html", title="Optimizer", blocks=blocks, plots=True)


def _entry(entries: Entries, row: Mapping[str, Any]) -> Entry:
    return entries.by_name[row["set"]]


def _view(i: int, table: Table, entries: Entries, data: Data) -> TableView:
    """A table with a row a set: every figure leads to the set."""
    links = {c.key: (lambda row: _entry(entries, row).page) for c in table.columns}
    return view_of(i, table, data, links)


def view_of(i: int, table: Table, data: Data, links: Mapping[str, Link], choose: Sequence[str] = ()) -> TableView:
    """A table of group `i`."""
    return view(table, data[table.name], links, choose, name=f"{table.name}-{i}")


def _bars(
    name: str, title: str, table: Table, bars: Mapping[str, str], axis: str, entries: Entries, data: Mapping[str, str]
) -> Plot:  # fmt: skip
    """Bars of several figures, side by side for each set."""
    rows: Sequence[Row] = table.rows
    traces = [
        {
            "type": "bar", "orientation": "h", "name": said, "y": list(labels(row["set"] for row in rows).values()),
            "x": [significant(row[key]) for row in rows], "marker": {"color": COLOURS[k]},
            "links": [_entry(entries, row).page for row in rows], "hovertemplate": "%{y}<br>%{x:.4g}",
        }
        for k, (key, said) in enumerate(bars.items())
    ]  # fmt: skip
    layout = {
        "barmode": "group", "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip
    alt = f"{title}: {', '.join(bars.values())}, for each of {len(rows)} sets"
    return Plot(name, title, traces, layout, alt, data, height=160 + (15 * len(bars) + 9) * len(rows))
