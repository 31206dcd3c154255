"""The overview, and the leaderboards: which set stands where, and under which conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atrex.report import figures
from atrex.report.site import cells
from atrex.report.site.blocks import Facts, Figures, Heading, Notes, Text
from atrex.report.site.entries import BOARDS, Entries, Entry
from atrex.report.site.page import Site
from atrex.report.site.plot import Plot, labels, significant
from atrex.report.site.table import Cell, TableView, view
from atrex.report.site.table import Heading as Column
from atrex.report.study.comparable import conditions
from atrex.report.study.document import Group
from atrex.report.study.overview import FIGURES, TIMES, overview


def _fine(value: float | None) -> str:
    """An S with the digits in which the ends of its interval differ."""
    return figures.DASH if value is None else f"{value:.4f}" if value >= 0.001 else figures.score(value)


_FORMATS = {key: _fine if key.startswith("s_") else figures.percent for key in FIGURES}
_WHY = {
    "default": "agents that had the default tools",
    "extended": "agents that had more tools, such as the web",
    "optimizer": "kernels that an optimizer worked on: the second of --pair, and what a campaign given here accepted",
    "given": "sets that no agent was asked for here, or of unknown origin: shown, not ranked with the others",
}
_ABOUT_INTERVALS = (
    "in brackets: over several samples the 95 % interval of their mean (Student's); for a single one what S_agg would "
    "be were every time at either end of its own 95 % interval. A single sample has no interval of a rate"
)


def overview_page(site: Site, entries: Entries, every: Mapping[str, dict[str, str]]) -> None:
    """The first page: S_agg, attainable S_agg, correctness and adoption of every system, with intervals."""
    blocks: list[Any] = []
    data = every.get("overview", {})
    groups = entries.study.groups
    for i, group in enumerate(groups, 1):
        if len(groups) > 1:
            blocks.append(Heading(group_title(i, group), f"group-{i}"))
        shown = entries.of(group)
        rows = overview(group.sets).rows
        if len(rows) == 1:
            blocks.append(_glance(rows[0], shown))
        blocks.append(_plot(i, rows, shown, entries, data))
        blocks.append(_table(i, rows, shown, data))
        blocks += _samples(i, group, every)
        blocks.append(Facts(_conditions(group)))
        blocks.append(Notes(group.notes))
    if entries.study.errors:
        n = entries.study.errors
        blocks.insert(0, Text(f"{n} unit{'s' * (n != 1)} ended in an evaluation error: figures are not sound.", True))
    if entries.study.differences:
        blocks.insert(0, Notes([f"not compared: {line}" for line in entries.study.differences]))
    if not groups:
        blocks.append(Text("No set stands alone here; the optimizer's table compares two.", True))
    blocks.append(Facts([("everything as data", Cell("report.json", href="data/report.json"))]))
    site.page("index.html", "page.html", title="Overview", blocks=blocks, plots=True)


def boards_page(site: Site, entries: Entries) -> None:
    """A board for each policy of tools, and within it one ranking for each group of comparable sets."""
    blocks: list[Any] = [Text("A set is ranked against those alone that were asked and judged under its conditions. "
                              "Its name leads to its operators, and they to its units.", True)]  # fmt: skip
    data = _board_file(site, entries)
    for board, title in BOARDS.items():
        mine = [e for e in entries.all if e.board == board]
        if board == "given" and not mine:
            continue
        blocks += [Heading(title, board), Text(f"Of {_WHY[board]}.")]
        groups = sorted({e.group for e in mine})
        for group in groups:
            ranked = _ranked(entries, board, group)
            of = f": group {group}" if len(entries.study.groups) > 1 and group else ""
            blocks.append(_board(f"{board}-{group}", f"Ranking{of}", ranked, data))
        if not groups:
            blocks.append(Text("No set of this kind is among these runs."))
    site.page("boards.html", "page.html", title="Leaderboards", blocks=blocks)


def group_title(i: int, group: Group) -> str:
    """A group by what its sets have in common."""
    at = conditions(group.sets[0])
    policy = f", {at['asked_policy']} tools" if at.get("asked_policy") else ""
    return f"Group {i}: {at['dsl']} on {at['chip']}{policy}"


def _conditions(group: Group) -> list[tuple[str, Cell]]:
    found = conditions(group.sets[0])
    # What was asked of an agent is told where it is not what was judged anyway.
    repeated = {
        key for key in found if key.startswith("asked_") and found.get(key.removeprefix("asked_")) == found[key]
    }
    return [
        (key.replace("asked_", "generation: ").replace("_", " "), Cell(str(value), kind="code"))
        for key, value in found.items() if value is not None and key not in repeated
    ]  # fmt: skip


def _leads_to(row: dict[str, Any], shown: Sequence[Entry]) -> str:
    mine = [e for e in shown if e.set.system == row["system"]]
    return mine[0].page if len(mine) == 1 else "boards.html"


def _glance(row: dict[str, Any], shown: Sequence[Entry]) -> Figures:
    pairs = []
    for key, name in FIGURES.items():
        low, high, format = row[f"{key}_low"], row[f"{key}_high"], _FORMATS[key]
        hint = f"{format(low)} to {format(high)}" if low is not None else None
        pairs.append(
            (name, Cell(format(row[key]), row[key], None if row[key] is None else _leads_to(row, shown), hint))
        )
    return Figures(pairs)


def _table(i: int, rows: Sequence[dict[str, Any]], shown: Sequence[Entry], data: dict[str, str]) -> TableView:
    made = []
    for row in sorted(rows, key=lambda r: -(r["s_agg"] or 0)):
        href = _leads_to(row, shown)
        line = [Cell(row["system"], href=href), cells.count(row["samples"])]
        for key in FIGURES:
            text = cells.interval(row[key], row[f"{key}_low"], row[f"{key}_high"], _FORMATS[key])
            line.append(Cell(text, row[key], href if row[key] is not None else None))
        made.append(line)
    headings = [Column("system", False), Column("samples"), *(Column(name) for name in FIGURES.values())]
    return TableView(f"overview-{i}", "Systems", headings, made, data, [_ABOUT_INTERVALS])


def _plot(
    i: int, rows: Sequence[dict[str, Any]], shown: Sequence[Entry], entries: Entries, data: dict[str, str]
) -> Plot:  # fmt: skip
    ordered = sorted(rows, key=lambda r: r["s_agg"] or 0)
    names = list(labels(row["system"] for row in ordered).values())
    traces = []
    for key, symbol, colour in (("s_agg", "circle", "#4e79a7"), ("s_agg_attainable", "diamond-open", "#c8701a")):
        kept = [(name, row) for name, row in zip(names, ordered, strict=True) if row[key] is not None]
        up = [significant((row[f"{key}_high"] or row[key]) - row[key]) for _, row in kept]
        down = [significant(row[key] - (row[f"{key}_low"] if row[f"{key}_low"] is not None else row[key]))
                for _, row in kept]  # fmt: skip
        traces.append({
            "type": "scatter", "mode": "markers", "name": FIGURES[key], "y": [name for name, _ in kept],
            "x": [significant(row[key]) for _, row in kept],
            "error_x": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5},
            "marker": {"size": 9, "symbol": symbol, "color": colour},
            "links": [_leads_to(row, shown) for _, row in kept],
            "hovertemplate": "%{y}<br>%{x:.4g}<extra>" + FIGURES[key] + "</extra>",
        })  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "S_agg"}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": names},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }
    one = len(rows) == 1 and rows[0]["over"] == TIMES
    alt = "S_agg and attainable S_agg of each system, with intervals" + (" of its times" if one else "")
    return Plot(f"overview-plot-{i}", "S_agg", traces, layout, alt, data, height=140 + 26 * len(rows))


def _samples(i: int, group: Group, every: Mapping[str, dict[str, str]]) -> list[TableView]:
    """What several samples of a system tell, where there are several."""
    found = [t for t in group.tables if t.name in ("pass_at_k", "intervals") and t.rows]
    links = {key: lambda row: "boards.html" for t in found for key in t.keys}
    return [view(t, every[t.name], links, ("system",), name=f"{t.name}-{i}") for t in found]


def _ranked(entries: Entries, board: str, group: int) -> list[Entry]:
    mine = [e for e in entries.all if (e.board, e.group) == (board, group)]
    return sorted(mine, key=lambda e: -e.set.summary.s_agg)


def _board_file(site: Site, entries: Entries) -> dict[str, str]:
    """All boards in one file, the sets of the optimizer's table with them."""
    names = sorted({baseline for e in entries.all for baseline in e.set.summary.baselines})
    rows = []
    for board in BOARDS:
        for group in sorted({e.group for e in entries.all}):
            for place, e in enumerate(_ranked(entries, board, group), 1):
                m = e.set.summary
                rows.append({
                    "board": board, "group": group, "place": place, "set": e.name, "s_agg": m.s_agg,
                    "s_agg_attainable": m.s_agg_attainable, "s_agg_strict": m.s_agg_strict,
                    "compile_rate": m.compile_rate, "correctness": m.correctness, "adoption": m.adoption,
                    "s": m.s_median, "operators_judged": m.operators_run, "operators": m.operators,
                    "errors": sum(m.errors.values()), "page": e.page,
                    **{f"vs_{n}": m.baselines[n].ratio if n in m.baselines else None for n in names},
                })  # fmt: skip
    return site.csv("boards", list(rows[0]) if rows else ["board"], rows)


def _board(name: str, title: str, ranked: Sequence[Entry], data: dict[str, str]) -> TableView:
    names = sorted({baseline for e in ranked for baseline in e.set.summary.baselines})
    rows = []
    for place, entry in enumerate(ranked, 1):
        m, href = entry.set.summary, entry.page
        rows.append([
            cells.count(place), cells.set_cell(entry), cells.score(m.s_agg, href),
            cells.score(m.s_agg_attainable, href), cells.score(m.s_agg_strict, href),
            cells.percent(m.compile_rate, href), cells.percent(m.correctness, href),
            cells.percent(m.adoption, href), cells.score(m.s_median, href),
            *(cells.ratio(m.baselines[b].ratio if b in m.baselines else None, href) for b in names),
            cells.of(m.operators_run, m.operators, href), cells.count(sum(m.errors.values()), href),
        ])  # fmt: skip
    headings = [
        Column("#"), Column("candidate set", False), Column("S_agg"), Column("attainable"), Column("strict"),
        Column("compiled"), Column("correct"), Column("DSL share"), Column("S", hint="median of S_i"),
        *(Column(f"vs {b}") for b in names), Column("operators"), Column("in error"),
    ]  # fmt: skip
    return TableView(name, title, headings, rows, data)
