"""The page of an operator: what it is, its shapes, and every candidate set on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atrex.errors import UserError
from atrex.problems.model import Problem
from atrex.problems.stats import intensity_and_regime
from atrex.report import figures
from atrex.report.site import cells
from atrex.report.site.blocks import Facts, Source
from atrex.report.site.entries import Entries, Entry, operator_href
from atrex.report.site.operator_plots import roofline_plot, s_plot, times_plot
from atrex.report.site.page import Nav, Site, slug
from atrex.report.site.table import Cell, Heading, TableView
from atrex.roofline.work import Work
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.units import headline, timed

INDEX = Nav("Operators", "operators/index.html")
MOST_UNITS = 2000
"""Rows of verdicts on a page, those that did not pass first; the file beside has all."""
_RANK = {Status.ERROR: 0, Status.FAILED: 1, Status.SKIPPED: 2, Status.PASSED: 3}


@dataclass(frozen=True)
class Judged:
    """An operator with the sets that were judged on it."""

    name: str
    entries: Entries
    problem: Problem | None

    @cached_property
    def sets(self) -> list[Entry]:
        return [e for e in self.entries.all if self.name in e.units]

    @cached_property
    def units(self) -> dict[str, list[UnitRecord]]:
        return {e.name: [s.record for page in e.units[self.name] for s in page] for e in self.sets}

    @cached_property
    def works(self) -> dict[str, Work]:
        """Shape -> its semantic work, where the suite is here and can tell."""
        if self.problem is None:
            return {}
        try:
            return {shape.id: self.problem.work(shape) for shape in self.problem.shapes.values()}
        except UserError:
            return {}

    @cached_property
    def shapes(self) -> list[str]:
        """Ids of the listed shapes, those of the suite in its order."""
        listed = list(self.problem.shapes) if self.problem else []
        return list(dict.fromkeys([*listed, *(r.shape for rs in self.units.values() for r in rs if not r.held_out)]))

    @property
    def weight(self) -> float | None:
        return self.sets[0].set.weights.values.get(self.name)

    @property
    def chips(self) -> list[str]:
        return list(dict.fromkeys(e.chip for e in self.sets))


def operator_pages(site: Site, entries: Entries) -> None:
    """Write the page of every operator that has a record, and their index."""
    judged = [Judged(name, entries, entries.problems.get(name)) for name in entries.operators]
    for each in judged:
        _page(site, each)
    site.page(INDEX.href, "page.html", title="Operators", blocks=[_index(site, judged)])


def _index(site: Site, judged: Sequence[Judged]) -> TableView:
    rows, data = [], []
    for each in judged:
        href = operator_href(each.name)
        intensity, regime = intensity_and_regime(each.works.values()) if each.works else (None, None)
        scores = {e.name: e.set.score.operators[each.name] for e in each.sets}
        best = max(each.sets, key=lambda e: scores[e.name].s)
        top = scores[best.name]
        correct = sum(s.fully_correct for s in scores.values())
        page = best.operator_page(each.name)
        rows.append([
            Cell(each.name, href=href), cells.percent(each.weight, href), Cell(regime or figures.DASH),
            cells.number(intensity, figures.DASH if intensity is None else f"{intensity:.3g}", href),
            cells.count(top.shapes, href), cells.of(correct, len(each.sets), href), cells.score(top.s_defined, page),
            Cell(best.name if top.scored else figures.DASH, href=page if top.scored else None),
        ])  # fmt: skip
        data.append({
            "operator": each.name, "weight": each.weight, "regime": regime, "intensity": intensity,
            "shapes": top.shapes, "sets": len(each.sets), "fully_correct_sets": correct, "best_s": top.s_defined,
            "best_set": best.name if top.scored else None,
        })  # fmt: skip
    headings = [
        Heading("operator", False), Heading("weight"), Heading("regime", False, True), Heading("FLOP/byte"),
        Heading("shapes"), Heading("sets fully correct"), Heading("best S_i"), Heading("by", False),
    ]  # fmt: skip
    return TableView("operators", "Operators judged", headings, rows, site.csv("operators-index", list(data[0]), data))


def _page(site: Site, each: Judged) -> None:
    at = f"operators/{slug(each.name)}"
    data, times = _unit_files(site, each, at)
    plots: list[Any] = []
    for chip in each.chips:
        mine = [e for e in each.sets if e.chip == chip]
        said = f"-{slug(chip.lower())}"
        plots.append(
            roofline_plot(f"roofline{said}", each.name, chip, mine, each.units, each.works, each.entries.styles, data)
        )
        plots.append(
            times_plot(f"times{said}", each.name, chip, mine, each.units, each.shapes, each.entries.styles, times)
        )
        plots.append(_times(each, chip, mine, times))
    blocks = [
        Facts(_facts(each)), *_definition(site, each, at), _sets(site, each, at),
        s_plot(each.name, each.sets, each.units, each.shapes, each.entries.styles, data), *plots,
        _verdicts(each, data), *([_shapes(site, each, at)] if each.problem else []),
    ]  # fmt: skip
    site.page(operator_href(each.name), "page.html", title=each.name, crumbs=[INDEX], blocks=blocks, plots=True)


def _facts(each: Judged) -> list[tuple[str, Cell]]:
    known = each.entries.of(each.entries.study.groups[0]) if each.entries.study.groups else each.sets
    facts = [("weight", Cell(figures.percent(each.weight), hint=known[0].set.weights.source))]
    if each.problem is None:
        return [*facts, ("suite", Cell("the suite that was judged is not here; --suite names it"))]
    meta = each.problem.metadata
    intensity, regime = intensity_and_regime(each.works.values()) if each.works else (None, "not known")
    told = meta.provenance
    traced = ", ".join(filter(None, [told.framework, told.module, told.symbol]))
    profiles = f"{told.profiles:,} serving profiles" if told.profiles else None
    return [
        *facts,
        ("regime", Cell(regime, hint=None if intensity is None else f"{intensity:.3g} FLOP/byte, the median shape")),
        ("phase", Cell(meta.phase)),
        ("shapes", Cell(str(len(each.problem.shapes)), href=f"{operator_href(each.name)}#shapes")),
        ("inputs", Cell(", ".join(f"{name}: {operand.dtype}" for name, operand in meta.inputs.items()))),
        ("outputs", Cell(", ".join(f"{name}: {operand.dtype}" for name, operand in meta.outputs.items()))),
        *([("traced as", Cell(traced, hint=profiles))] if traced else []),
    ]


def _definition(site: Site, each: Judged, at: str) -> list[Any]:
    """The reference, which is what an operator means, and what draws its inputs."""
    blocks: list[Any] = []
    for file, title in (("reference.py", "Definition: the PyTorch reference"), ("input.py", "Inputs")):
        path = each.problem.folder / file if each.problem else None
        if path is None or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        blocks.append(Source(title, text, {file: site.text(f"data/{at}/{file}", text)}, id=file.partition(".")[0]))
    return blocks


def _sets(site: Site, each: Judged, at: str) -> TableView:
    names = sorted({n for e in each.sets for n in e.set.score.operators[each.name].ratios})
    rows, data = [], []
    for e in sorted(each.sets, key=lambda e: -e.set.score.operators[each.name].s):
        o, href = e.set.score.operators[each.name], e.operator_page(each.name)
        rows.append([
            Cell(e.name, href=href), Cell(e.chip), *cells.operator_cells(o, href, names),
            Cell("source", href=f"{href}#source"),
        ])  # fmt: skip
        data.append({"set": e.name, "chip": e.chip, **cells.operator_data(o, names)})
    headings = [
        Heading("candidate set", False), Heading("chip", False, True), *cells.operator_headings(names),
        Heading("code", False),
    ]  # fmt: skip
    return TableView("sets", "Candidate sets", headings, rows, site.csv(f"{at}/sets", list(data[0]), data))


def _unit_files(site: Site, each: Judged, at: str) -> tuple[dict[str, str], dict[str, str]]:
    """Every unit as data, and times by shape: the links to both."""
    units, times = [], []
    for e in each.sets:
        for r in each.units[e.name]:
            time, roof = r.performance, r.roofline
            units.append({
                "set": e.name, "shape": r.shape, "held_out": r.held_out, "status": str(r.verdict.status),
                "stage": r.verdict.stage and str(r.verdict.stage), "category": r.verdict.category,
                "shortcut": r.verdict.shortcut, "reason": r.verdict.reason, "median_us": time and time.median_us,
                "roofline_us": roof and roof.roofline_us, "bound": roof and roof.bound, "s": cells.s_of(r),
                "attainable_s": cells.s_of(r, "attainable_S"), "dsl_share": r.adoption and r.adoption.share,
                "flops": each.works[r.shape].total_flops if r.shape in each.works else None,
                "bytes": each.works[r.shape].total_bytes if r.shape in each.works else None,
                "record": e.href(r),
            })  # fmt: skip
            if not r.held_out:
                times.append({
                    "set": e.name, "chip": e.chip, "shape": r.shape, "median_us": time.median_us if timed(r) else None,
                    "roofline_us": roof and roof.roofline_us, "floor_us": roof and roof.floor_us,
                    **{f"{name}_us": us for name, us in (r.baselines or {}).items()}, "production": r.production,
                })  # fmt: skip
    keys = list(dict.fromkeys(key for row in times for key in row)) or ["set"]
    return site.csv(f"{at}/units", list(units[0]), units), site.csv(f"{at}/times", keys, times)


def _times(each: Judged, chip: str, sets: Sequence[Entry], data: Mapping[str, str]) -> TableView:
    """A row a shape: roofline, floor, baselines and production, and every set's time."""
    by_unit = {(e.name, r.shape): (e, r) for e in sets for r in headline(each.units[e.name])}
    names = sorted({name for _, r in by_unit.values() for name in r.baselines or {}})
    rows = []
    for shape in each.shapes:
        found = [by_unit.get((e.name, shape)) for e in sets]
        present = [f for f in found if f is not None]
        if not present:
            continue
        roofs = [(e, r) for e, r in present if r.roofline is not None]
        first = roofs[0] if roofs else None
        line = [cells.shape_cell(present[0][1])]
        line += [
            cells.us(first[1].roofline.roofline_us, first[0].href(first[1])) if first else cells.us(None),
            cells.us(first[1].roofline.floor_us, first[0].href(first[1])) if first else cells.us(None),
        ]
        for name in names:
            told = next(((e, r) for e, r in present if name in (r.baselines or {})), None)
            if told is None:
                line.append(cells.us(None))
            else:
                whose = told[1].production if name == "production" else None
                line.append(cells.us(told[1].baselines[name], told[0].href(told[1]), hint=whose))
        for f in found:
            if f is None or not timed(f[1]):
                line.append(Cell(figures.DASH) if f is None else _ended(*f))
            else:
                line.append(cells.us(f[1].performance.median_us, f[0].href(f[1])))
        rows.append(line)
    headings = [Heading("shape", False), Heading("roofline"), Heading("floor"), *(Heading(n) for n in names)]
    headings += [Heading(e.name) for e in sets]
    notes = ["median microseconds; a shape whose time does not count says how its unit ended"]
    return TableView(f"times-table-{slug(chip.lower())}", f"Times by shape on {chip}", headings, rows, data, notes)


def _ended(entry: Entry, record: UnitRecord) -> Cell:
    """How a unit ended whose time does not count."""
    status = str(record.verdict.status)
    return Cell(status, None, entry.href(record), kind=status)


def _verdicts(each: Judged, data: Mapping[str, str]) -> TableView:
    """A row a unit, those in error and the failed ones first."""
    units = [(e, r) for e in each.sets for r in each.units[e.name]]
    units.sort(key=lambda pair: _RANK[pair[1].verdict.status])
    rows = []
    for e, r in units[:MOST_UNITS]:
        href = e.href(r)
        rows.append([
            Cell(e.name, href=e.operator_page(each.name)), cells.shape_cell(r, href), cells.verdict_cell(r, href),
            cells.time_cell(r, href), cells.score(cells.s_of(r), href),
            cells.percent(r.adoption.share if r.adoption else None, href), cells.reason_cell(r),
        ])  # fmt: skip
    notes = []
    if len(units) > MOST_UNITS:
        notes.append(f"{MOST_UNITS:,} of {len(units):,} units, those that did not pass first; the file has them all")
    used = {m for _, r in units[:MOST_UNITS] for m in figures.marks(r)}
    notes += [f"{m}: {figures.MARKS[m]}" for m in figures.MARKS if m in used]
    headings = [
        Heading("candidate set", False, True), Heading("shape", False), Heading("verdict", False, True),
        Heading("median us"), Heading("S"), Heading("DSL share"), Heading("reason", False),
    ]  # fmt: skip
    return TableView("verdicts", "Verdicts", headings, rows, data, notes)


def _shapes(site: Site, each: Judged, at: str) -> TableView:
    rows, data = [], []
    for shape in each.problem.shapes.values():
        meta, work = each.problem.metadata.shapes.get(shape.id), each.works.get(shape.id)
        rows.append([
            Cell(shape.id, int(shape.id) if shape.id.isdecimal() else shape.id, id=f"shape-{slug(shape.id)}"),
            Cell(meta.origin if meta else figures.DASH), Cell(cells.compact(shape.init_kwargs), kind="code"),
            Cell(cells.compact(shape.input_kwargs), kind="code"),
            cells.number(work and work.total_flops, figures.DASH if work is None else f"{work.total_flops:,}"),
            cells.number(work and work.total_bytes, figures.DASH if work is None else f"{work.total_bytes:,}"),
            cells.count(meta.call_count if meta else None), Cell((meta.description if meta else None) or ""),
        ])  # fmt: skip
        data.append({
            "shape": shape.id, "origin": meta and meta.origin, "init_kwargs": dict(shape.init_kwargs),
            "input_kwargs": dict(shape.input_kwargs), "flops": work and work.flops,
            "bytes_read": work and work.bytes_read, "bytes_written": work and work.bytes_written,
            "call_count": meta and meta.call_count,
            "description": meta and meta.description,
        })  # fmt: skip
    headings = [
        Heading("shape", False), Heading("origin", False, True), Heading("init_kwargs", False),
        Heading("input_kwargs", False), Heading("FLOPs"), Heading("bytes"),
        Heading("calls", hint="in the traces"), Heading("description", False),
    ]  # fmt: skip
    return TableView("shapes", "Shapes", headings, rows, site.json(f"{at}/shapes", data))
