"""The page of a candidate set, and the pages of its units: what every figure elsewhere leads to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atrex.report import figures
from atrex.report.site import cells
from atrex.report.site.blocks import Facts, Figures, Heading, Notes, Source, Text
from atrex.report.site.entries import BOARDS, Entries, Entry, Shown, operator_href
from atrex.report.site.page import Nav, Site, slug
from atrex.report.site.plot import Plot, significant
from atrex.report.site.table import Cell, TableView
from atrex.report.site.table import Heading as Column
from atrex.report.summary import summary_rows
from atrex.scoring.failures import MAPPING_NOTE, failures
from atrex.scoring.operators import OperatorScore

INDEX = Nav("Leaderboards", "boards.html")
LONGEST_SOURCE = 400_000  # characters on a page; the file beside has the rest


def set_pages(site: Site, entries: Entries) -> None:
    """Write the page of every set and those of its units, with the records they show."""
    for entry in entries.all:
        _set(site, entry)
        for operator in entry.units:
            _units(site, entry, operator)


def _set(site: Site, entry: Entry) -> None:
    at = f"sets/{entry.slug}"
    run = site.json(f"{at}/run", entry.set.run.run)
    scores = list(entry.set.score.operators.values())
    m = entry.set.summary
    glance = [
        ("S_agg", Cell(figures.score(m.s_agg), href=f"{entry.page}#operators")),
        ("attainable S_agg", Cell(figures.score(m.s_agg_attainable), href=f"{entry.page}#operators")),
        ("correctness", Cell(figures.percent(m.correctness), href=f"{entry.page}#operators")),
        ("adoption", Cell(figures.percent(m.adoption), href=f"{entry.page}#operators",
                          hint=f"over {m.adoption_operators} of {m.operators} operators")),
    ]  # fmt: skip
    blocks: list[Any] = [
        Figures(glance), _operators(site, entry, scores, at), _plot(entry, scores, site, at),
        _figures(site, entry, at), _failures(site, entry, at),
        Heading("How it was judged", "run"), Facts(_facts(entry, run)), Notes(entry.set.run.notes),
    ]  # fmt: skip
    site.page(entry.page, "page.html", title=entry.name, crumbs=[INDEX], blocks=blocks, plots=True)


def _operators(site: Site, entry: Entry, scores: Sequence[OperatorScore], at: str) -> TableView:
    names = sorted({n for o in scores for n in o.ratios})
    rows, data = [], []
    for o in scores:
        href = entry.operator_page(o.operator)
        rows.append([
            Cell(o.operator, href=href), cells.percent(o.weight, operator_href(o.operator)),
            *cells.operator_cells(o, href, names), Cell("all sets", href=operator_href(o.operator)),
        ])  # fmt: skip
        data.append({"operator": o.operator, "weight": o.weight, **cells.operator_data(o, names)})
    headings = [
        Column("operator", False), Column("weight"), *cells.operator_headings(names), Column("beside", False),
    ]  # fmt: skip
    notes = ["of the shapes of the suite, run or not; an operator leads to its units"]
    return TableView("operators", "Operators", headings, rows, site.csv(f"{at}/operators", list(data[0]), data), notes)


def _plot(entry: Entry, scores: Sequence[OperatorScore], site: Site, at: str) -> Plot:
    ordered = [o for o in scores if o.scored]
    traces = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": [o.operator for o in ordered],
            "x": [significant(getattr(o, key)) for o in ordered], "marker": {"color": colour},
            "links": [entry.operator_page(o.operator) for o in ordered], "hovertemplate": "%{y}<br>%{x:.4g}",
        }
        for key, name, colour in (("s", "S_i", "#4e79a7"), ("attainable", "attainable S_i", "#c8701a"))
        if any(getattr(o, key) is not None for o in ordered)
    ]  # fmt: skip
    layout = {"barmode": "group", "xaxis": {"title": {"text": "S_i"}, "rangemode": "tozero"},
              "yaxis": {"type": "category", "tickmode": "linear", "autorange": "reversed"},
              "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"}}  # fmt: skip
    alt = f"S_i of {len(ordered)} operators, heaviest first" if ordered else "no operator has an S_i."
    data = {"CSV": f"data/{at}/operators.csv"}
    return Plot("s-by-operator", "S by operator", traces, layout, alt, data, height=150 + 30 * len(ordered))


def _figures(site: Site, entry: Entry, at: str) -> TableView:
    m = entry.set.summary
    rows = [
        [Cell(row.name.strip()), Cell(row.value(m), href=f"{entry.page}#operators"), Cell(row.over)]
        for row in summary_rows([m])
    ]
    data = [{"figure": row[0].text, "value": row[1].text, "over": row[2].text} for row in rows]
    headings = [Column("figure", False), Column("value"), Column("over", False)]
    return TableView("figures", "All figures", headings, rows, site.csv(f"{at}/figures", list(data[0]), data))


def _failures(site: Site, entry: Entry, at: str) -> TableView:
    counts = failures(entry.set.records)
    rows = [
        [Cell(str(c.row.stage)), Cell(c.row.title), cells.count(c.count, f"{entry.page}#operators"),
         cells.percent(c.share)]
        for c in counts if c.count
    ]  # fmt: skip
    data = [{"stage": str(c.row.stage), "category": c.row.title, "units": c.count, "share": c.share} for c in counts]
    headings = [Column("stage", False, True), Column("category", False), Column("units"), Column("share")]
    return TableView("failures", "Failing units", headings, rows, site.csv(f"{at}/failures", list(data[0]), data),
                     [MAPPING_NOTE] if rows else [], "no unit failed")  # fmt: skip


def _facts(entry: Entry, run: dict[str, str]) -> list[tuple[str, Cell]]:
    said, made = entry.set.run.run, entry.set.generation
    facts = [
        ("board", Cell(BOARDS[entry.board], href=f"boards.html#{entry.board}")),
        ("run", Cell(str(entry.set.run.path), href=run["JSON"], kind="code")),
        ("records", Cell(f"{len(entry.set.records)} units", href=f"{entry.page}#operators")),
        ("command", Cell(" ".join(map(str, said.get("argv") or ())) or figures.DASH, kind="code")),
        ("device", Cell(f"{said.get('device_name') or entry.set.records[0].device} ({entry.chip})")),
        ("DSL", Cell(", ".join(sorted({r.dsl for r in entry.set.records})))),
        ("suite", Cell(f"{said.get('suite')} {said.get('suite_version')}", hint=str(said.get("suite_hash") or ""))),
        ("versions", Cell(cells.compact(said.get("versions") or {}) or figures.DASH)),
        ("judged", Cell(f"{said.get('created') or 'at a time not recorded'}", hint=_state(said))),
    ]  # fmt: skip
    if made is not None:
        about = made.about
        facts += [
            ("agent", Cell(about.agent)), ("model", Cell(about.model or "not named")),
            ("tools", Cell(about.policy)), ("prompt", Cell(about.prompt_sha256, kind="code")),
            ("sample", Cell(str(entry.set.sample))), ("generated", Cell(about.created)),
        ]  # fmt: skip
    return facts


def _state(said: dict[str, Any]) -> str:
    return f"closed {said['closed']}" if said.get("closed") else "not closed: the run was interrupted or goes on"


def _units(site: Site, entry: Entry, operator: str) -> None:
    at = f"sets/{entry.slug}/{slug(operator)}"
    pages = entry.units[operator]
    records = [shown.record for page in pages for shown in page]
    data = {"JSONL": site.text(f"data/{at}.jsonl", "".join(f"{shown.line}\n" for page in pages for shown in page))}
    source = _source(site, entry, records, at)
    for i, page in enumerate(pages):
        blocks: list[Any] = [
            Facts([
                ("operator", Cell(operator, href=operator_href(operator))),
                ("candidate", Cell(records[0].candidate, kind="code")),
                ("SHA-256", Cell(records[0].candidate_sha256, kind="code")),
            ]),
            _table(page, data, len(records)),
        ]  # fmt: skip
        if len(pages) > 1:
            parts = [(f"part {k + 1}", Cell(f"{len(p)} units", href=p[0].href.partition("#")[0]))
                     for k, p in enumerate(pages) if k != i]  # fmt: skip
            blocks.append(Facts(parts))
        blocks += source if not i else []
        blocks.append(Heading("Records", "records"))
        blocks += [Source(f"shape {figures.shape(s.record)}: {figures.verdict(s.record.verdict)}", s.text, id=s.anchor)
                   for s in page]  # fmt: skip
        title = operator + (f", part {i + 1} of {len(pages)}" if len(pages) > 1 else "")
        crumbs = [INDEX, Nav(entry.name, entry.page)]
        site.page(page[0].href.partition("#")[0], "page.html", title=title, crumbs=crumbs, blocks=blocks)


def _table(page: Sequence[Shown], data: dict[str, str], total: int) -> TableView:
    rows = []
    for shown in page:
        r, href = shown.record, shown.href
        time, roof, share = r.performance, r.roofline, r.adoption
        kernels = ", ".join(f"{k.name} {figures.us(k.us)} ({k.owner})" for k in share.kernels[:3]) if share else ""
        ci = f"{figures.us(time.ci_us[0])} to {figures.us(time.ci_us[1])}" if time else figures.DASH
        rows.append([
            cells.shape_cell(r, href), cells.verdict_cell(r, href),
            Cell(r.verdict.reason or "", kind="reason" if r.verdict.reason else None),
            cells.time_cell(r, href), cells.number(time.ci_us[0] if time else None, ci, href),
            cells.us(roof and roof.roofline_us, href),
            Cell(roof.bound if roof else figures.DASH), cells.us(roof and roof.floor_us, href),
            cells.score(cells.s_of(r), href), cells.score(cells.s_of(r, "attainable_S"), href),
            cells.percent(share and share.share, href), _worst(r.correctness and r.correctness.worst, href),
            Cell(kernels, kind="code"),
        ])  # fmt: skip
    headings = [
        Column("shape", False), Column("verdict", False, True), Column("reason", False), Column("median us"),
        Column("95 % interval"), Column("roofline us"), Column("bound", False), Column("floor us"), Column("S"),
        Column("attainable"), Column("DSL share"), Column("worst error", hint="over its bound; passes up to 1"),
        Column("kernels", False),
    ]  # fmt: skip
    used = {m for shown in page for m in figures.marks(shown.record)}
    notes = [f"{m}: {figures.MARKS[m]}" for m in figures.MARKS if m in used]
    if len(page) < total:
        notes.append(f"{len(page)} of {total} units; the file has them all")
    return TableView("units", "Units", headings, rows, data, notes)


def _worst(value: float | None, href: str) -> Cell:
    return cells.number(value, figures.DASH if value is None else f"{value:.3g}", href)


def _source(site: Site, entry: Entry, records: Sequence[Any], at: str) -> list[Any]:
    text = cells.candidate_source(entry, records)
    if text is None:
        gone = "The source that was judged is not here, or has changed since; the hash tells which it was."
        return [Text(gone, id="source")]
    data = {"source": site.text(f"data/{at}.py.txt", text)}
    if len(text) > LONGEST_SOURCE:
        text = f"{text[:LONGEST_SOURCE]}\n... {len(text):,} characters in all, the file has the rest"
    return [Source("Candidate source", text, data, id="source")]
