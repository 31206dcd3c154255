"""Pages of a trace data set: device time by operator, phase and application, what is unmapped, shapes, weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from atrex.report import figures
from atrex.report.site.lists import TRACES, Told
from atrex.report.site.page import Nav, Site, slug
from atrex.report.site.table import Cell, Heading, TableView, number
from atrex.report.site.trace_plots import applications_plot, families_plot, shapes_plot, weights_plot
from atrex.report.traces import trace_document
from atrex.traces.dataset import open_dataset
from atrex.traces.phases import NONE, PHASES
from atrex.traces.summary import LINKED

_NAMES = {"family": "code", "kernel": "code wide", "phase": None}


def trace_pages(
    site: Site, path: Path, name: str, published: Mapping[str, float], jobs: int | None = 1
) -> Told:  # fmt: skip
    """Write the pages of one data set below `traces/`; returns what leads there.

    `name` tells it from other data sets of the site, `published` is the suite's weight by operator, to compare with.
    `jobs` as in `trace_document`.
    """
    document = trace_document(open_dataset(path), jobs)
    at = folder_of(name)
    _Pages(site, document, name, at, published).write()
    return Told(name, f"{at}/index.html", document)


def folder_of(name: str) -> str:
    """Where the pages of the data set of this name stand."""
    return f"traces/{slug(name)}"


class _Pages:
    def __init__(self, site: Site, document: dict[str, Any], name: str, at: str, published: Mapping[str, float]):
        self.site, self.document, self.name, self.at, self.published = site, document, name, at, published
        self.crumbs = (TRACES, Nav(name, f"{at}/index.html"))

    def write(self) -> None:
        document, site = self.document, self.site
        self.whole = site.json(f"{self.at}/traces", document)
        shown: dict[str, Any] = {"plots": document["time"] is not None, "sections": [], "figures_": [], "drawn": []}
        if document["time"] is not None:
            shown["figures_"] = self._figures()
            tables = {by: self._time(by) for by in ("family", "kernel", "phase")}
            shown["drawn"] = [families_plot(document, tables["family"].data)]
            if len(document["applications"]) > 1:
                shown["drawn"].append(applications_plot(document, self.whole))
            weights = self._weights()
            if weights is not None:
                shown["drawn"].append(weights_plot(document["weights"], self.published, weights.data))
            shown["sections"] = [
                tables["family"], tables["phase"], self._applications(), *([weights] if weights else []),
                self._shapes(), self._unmined(), self._unmapped(), tables["kernel"],
            ]  # fmt: skip
            for entry in document["shapes"]:
                self._operator(entry)
        site.page(
            f"{self.at}/index.html", "traces.html", title=self.name, crumbs=(TRACES,), document=document,
            files=self._files(), data=self.whole, **shown,
        )  # fmt: skip

    def _csv(self, name: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        flat = [{k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()} for row in rows]
        columns = list(dict.fromkeys(key for row in flat for key in row))
        return self.site.csv(f"{self.at}/{name}", columns, flat) | self.whole

    def _figures(self) -> list[tuple[str, Cell]]:
        document, time = self.document, self.document["time"]
        counted = [trace for trace in document["traces"] if trace["role"] == "serving"]
        phases = {row["phase"]: row["share"] for row in document["by"]["phase"]["rows"]}
        said = ", ".join(f"{name} {figures.percent(phases[name])}" for name in PHASES if phases.get(name))
        left = f"{len(time['captures'])} of graph captures not counted" if time["captures"] else None
        return [
            ("device time", Cell(ms(time["total_ns"]), hint=f"{time['kind']}: every instant of a device once")),
            ("traces", Cell(str(len(counted)), hint=left)),
            ("mapped", Cell(figures.percent(time["mapped"]), hint="the family says what the time went to")),
            ("the suite's operators", Cell(figures.percent(time["operators"]))),
            ("unmapped", Cell(figures.percent(document["unmapped"]["share"]), href=f"{self.at}/index.html#unmapped")),
            ("phases", Cell(f"{len([p for p in phases if p != NONE])}", hint=said)),
        ]  # fmt: skip

    # -- tables ----------------------------------------------------------------------------------------------------

    def _time(self, by: str) -> TableView:
        top = self.document["by"][by]
        several = by != "phase"
        headings = [
            Heading(by, False), Heading("share"), Heading("ms"), Heading("calls"), Heading("us a call"),
            *([Heading("phases", False), Heading("operator" if by == "family" else "family", False, by == "kernel")]
              if several else []),
            *([Heading("what it is", False)] if by == "family" else []),
        ]  # fmt: skip
        shaped = {entry["operator"] for entry in self.document["shapes"]}
        rows = []
        for row in top["rows"]:
            cells = [
                Cell(cut(row[by]), kind=_NAMES[by], hint=row[by] if len(row[by]) > 160 else None),
                number(row["share"], percent(row["share"])),
                number(row["ns"], f"{row['ns'] / 1e6:,.3f}"), number(row["calls"], f"{row['calls']:,}"),
                number(each := row["ns"] / 1e3 / row["calls"], figures.us(each)),
            ]  # fmt: skip
            if several:
                cells.append(Cell(phases(row["phases"])))
            if by == "family":
                operator = row["operator"]
                href = self._operator_page(operator) if operator in shaped else None
                cells += [Cell(operator or ("" if row["mapped"] else "unmapped"), href=href), Cell(row["what"])]
            elif by == "kernel":
                cells.append(Cell(row["family"]))
            rows.append(cells)
        title = {"family": "Device time by operator family", "kernel": "Device time by kernel", "phase": "By phase"}[by]
        rest = top["total"] - len(top["rows"])
        notes = [f"{rest} more {by}s, {percent(top['rest_share'])} of the time: atrex trace top"] if rest else []
        return TableView(f"by-{by}", title, headings, rows, self._csv(f"by-{by}", top["rows"]), notes)

    def _applications(self) -> TableView:
        rows_ = self.document["applications"]
        names = [p for p in PHASES if any(row["phases"].get(p) for row in rows_)]
        headings = [Heading("application", False), Heading("share"), Heading("ms"), Heading("records"),
                    *(Heading(p) for p in names), Heading("heaviest families", False), Heading("traces")]  # fmt: skip
        rows = [
            [Cell(row["application"]), number(row["share"], percent(row["share"])),
             number(row["ns"], f"{row['ns'] / 1e6:,.3f}"), number(row["calls"], f"{row['calls']:,}"),
             *(number(s := _shares(row["phases"]).get(p, 0.0), figures.percent(s)) for p in names),
             Cell(", ".join(f"{f} {figures.percent(s)}" for f, s in list(_shares(row["families"]).items())[:3])),
             number(len(row["traces"]), str(len(row["traces"])))]
            for row in rows_
        ]  # fmt: skip
        return TableView("applications", "By application", headings, rows, self._csv("applications", rows_))

    def _weights(self) -> TableView | None:
        found = self.document["weights"]
        if found is None:
            return None
        families = [family for family in found["families"] if family["weight"] is not None]
        headings = [Heading("operator", False), Heading("weight"), Heading("published weight"),
                    Heading("score", hint="mean share over the phases it runs in"),
                    Heading("runs in", False)]  # fmt: skip
        rows = [
            [Cell(f["operator"], kind="code"), number(f["weight"], percent(f["weight"])),
             number(p := self.published.get(f["operator"]), figures.DASH if p is None else percent(p)),
             number(f["score"], f"{f['score']:.4f}"), Cell(", ".join(f["phases"]))]
            for f in families
        ]  # fmt: skip
        beyond = [f for f in found["families"] if f["weight"] is None]
        notes = ["Applications count by their traced device time: fleet.yaml gives them card-hours "
                 "(atrex suite weights --fleet).", *found["notes"]]  # fmt: skip
        if beyond:
            named = ", ".join(f"{f['family']} {percent(f['score'])}" for f in beyond[:8])
            notes.append(f"Beyond the suite, not weighted: {named}" + (" and more" if len(beyond) > 8 else ""))
        data = self._csv("weights", [{k: f[k] for k in ("family", "operator", "weight", "score", "phases")} for f in
                                     found["families"]])  # fmt: skip
        return TableView("weights", "Importance weights", headings, rows, data, notes)

    def _shapes(self) -> TableView:
        by_operator = self.document["shapes"]
        untold: dict[str, float] = {}
        for row in self.document["unmined"]:
            untold[row["operator"]] = untold.get(row["operator"], 0.0) + row["ns"]
        headings = [Heading("operator", False), Heading("shapes"), Heading("calls"), Heading("ms"),
                    Heading("shape known", hint="share of its device time"), Heading("heaviest shape"),
                    Heading("which", False)]  # fmt: skip
        rows = []
        for entry in by_operator:
            known = entry["ns"] / (entry["ns"] + untold.get(entry["operator"], 0.0)) if entry["ns"] else None
            first, href = entry["rows"][0], self._operator_page(entry["operator"])
            rows.append([
                Cell(entry["operator"], href=href, kind="code"), number(entry["shapes"], str(entry["shapes"]), href),
                number(entry["calls"], f"{entry['calls']:,}"), number(entry["ns"], f"{entry['ns'] / 1e6:,.3f}"),
                number(known, figures.percent(known)), number(first["share"], figures.percent(first["share"])),
                Cell(kwargs(first)),
            ])  # fmt: skip
        flat = [{"operator": e["operator"], **row} for e in by_operator for row in e["rows"]]
        return TableView(
            "shapes", "Shapes", headings, rows, self._csv("shapes", flat), empty="no call's shape is known"
        )

    def _unmined(self) -> TableView:
        rows_ = self.document["unmined"]
        rows = [
            [Cell(r["operator"], kind="code"), number(r["ns"], f"{r['ns'] / 1e6:,.3f}"), Cell(r["reason"])]
            for r in rows_
        ]
        headings = [Heading("operator", False, True), Heading("ms"), Heading("why", False)]
        return TableView("unmined", "Shapes that are not known", headings, rows, self._csv("unmined", rows_),
                         empty="every call of the suite's operators has a known shape")  # fmt: skip

    def _unmapped(self) -> TableView:
        found = self.document["unmapped"]
        headings = [Heading("kernel", False), Heading("share"), Heading("us"), Heading("calls"),
                    Heading("family", False, True), Heading("operators around", False),
                    Heading("modules", False), Heading("frames", False),
                    Heading("operands", False)]  # fmt: skip
        rows = [
            [Cell(cut(r["name"]), kind="code wide", hint=cut(r["name"], 1000)), number(r["share"], percent(r["share"])),
             number(r["ns"], f"{r['ns'] / 1e3:,.1f}"), number(r["calls"], f"{r['calls']:,}"), Cell(r["family"]),
             *(Cell(cut(r[key] or ""), kind="wide") for key in ("ops", "modules", "frames", "dims"))]
            for r in found["rows"]
        ]  # fmt: skip
        notes = [f"{left} more in atrex trace unmapped"] if (left := found["total"] - len(found["rows"])) else []
        return TableView("unmapped", "Unmapped", headings, rows, self._csv("unmapped", found["rows"]), notes,
                         "all device time is mapped")  # fmt: skip

    def _files(self) -> TableView:
        rows_ = self.document["traces"]
        headings = [Heading("trace", False), Heading("application", False, True), Heading("format", False),
                    Heading("framework", False), Heading("device", False), Heading("role", False, True),
                    Heading("records"), Heading("ms"), Heading("linked"), Heading("mapped"), Heading("operators"),
                    Heading("with a phase"), Heading("what it lacks", False)]  # fmt: skip
        rows = []
        for t in rows_:
            shares = t["shares"]
            rows.append([
                Cell(t["trace"], kind="code", hint=t["file"]), Cell(t["app"] or ""), Cell(t["format"]),
                Cell(t["framework"] or ""),
                Cell(", ".join(t["devices"]) or t["vendor"] or ""), Cell(t["role"]),
                number(n := sum(t["records"].values()), f"{n:,}"),
                number(ns := t["device_ns"]["exclusive"], f"{ns / 1e6:,.3f}"),
                *(number(s := shares[key], figures.percent(s)) for key in ("linked", "mapped", "operators", "phase")),
                Cell("; ".join([*t["lacks"], *t["notes"]]), kind="wide"),
            ])  # fmt: skip
        keys = ("trace", "app", "file", "format", "framework", "role", "device_ns", "shares", "lacks", "notes")
        data = self._csv("files", [{key: t[key] for key in keys} for t in rows_])
        how = ", ".join(LINKED)
        return TableView("files", "Traces", headings, rows, data, [f"linked: the launch is known, by {how}"])

    # -- an operator's shapes --------------------------------------------------------------------------------------

    def _operator_page(self, operator: str) -> str:
        return f"{self.at}/shapes-{slug(operator)}.html"

    def _operator(self, entry: Mapping[str, Any]) -> None:
        rows_ = entry["rows"]
        dims = list(dict.fromkeys(name for row in rows_ for name in row["dims"]))
        headings = [Heading("shape"), Heading("share"), Heading("calls"), Heading("ms"), Heading("us a call"),
                    *(Heading(name) for name in dims), Heading("phases", False), Heading("chips", False),
                    Heading("applications", False), Heading("arguments", False)]  # fmt: skip
        data = self._csv(f"shapes-{slug(entry['operator'])}", rows_)
        rows = [
            [number(i, str(i)), number(row["share"], percent(row["share"])), number(row["calls"], f"{row['calls']:,}"),
             number(row["ns"], f"{row['ns'] / 1e6:,.3f}"), number(us := row["ns"] / 1e3 / row["calls"], figures.us(us)),
             *(_dim(row["dims"].get(name)) for name in dims),
             Cell(phases(_shares(row["phases"]))), Cell(", ".join(row["chips"]) or "unknown"),
             Cell(", ".join(row["applications"])), Cell(cut(kwargs(row), 300), kind="code wide")]
            for i, row in enumerate(rows_, 1)
        ]  # fmt: skip
        left = entry["shapes"] - len(rows_)
        notes = ["Figures of dimensions are traced, where they are not marked configured or typical.",
                 *([f"{left} more shapes"] if left else [])]  # fmt: skip
        missing = [r for r in self.document["unmined"] if r["operator"] == entry["operator"]]
        self.site.page(
            self._operator_page(entry["operator"]), "shapes.html", title=f"Shapes of {entry['operator']}",
            crumbs=self.crumbs, plots=True, drawn=shapes_plot(entry, data), missing=missing, ms=ms,
            table=TableView("shapes", "Shapes by device time", headings, rows, data, notes),
        )  # fmt: skip


def ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f} ms"


def percent(share: float) -> str:
    """A share of device time, where a hundredth of a percent counts."""
    return f"{share:.2%}" if share >= 0.0001 or share == 0 else "<0.01%"


def phases(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name != NONE)


def cut(text: str, length: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def kwargs(row: Mapping[str, Any]) -> str:
    """A shape's arguments in one line."""
    return ", ".join(
        f"{name}={json.dumps(value)}" for part in ("init_kwargs", "input_kwargs") for name, value in row[part].items()
    )


def _shares(ns: Mapping[str, float]) -> dict[str, float]:
    total = sum(ns.values())
    return {name: value / total for name, value in ns.items()} if total else {}


def _dim(dim: Mapping[str, Any] | None) -> Cell:
    if dim is None:
        return Cell(figures.DASH)
    value, mark = dim["value"], "" if dim["source"] == "traced" else f" ({dim['source']})"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return Cell(text + mark, value if isinstance(value, int | float) else None)
