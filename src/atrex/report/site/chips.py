"""Pages of chips and architectures: every ceiling with its source, and the roofline that they draw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from atrex.report import figures
from atrex.report.chips import COMPARED, chip_documents
from atrex.report.site.page import Nav, Site
from atrex.report.site.plot import COLOURS, Plot, significant
from atrex.report.site.table import Cell, Heading, TableView, number

INDEX = Nav("Chips", "chips/index.html")
_FROM, _TO = 0.25, 4096.0  # FLOP/byte


def chip_pages(site: Site, cards: Collection[str]) -> dict[str, str]:
    """Write the pages below `chips/`; returns chip or architecture by its name -> its page.

    `cards` are those of the wiki: not every chip has one.
    """
    documents = chip_documents()
    pages = _paths(documents)
    whole = site.json("chips", documents)
    for each in documents:
        _page(site, each, pages, whole, cards)
    chips = [each for each in documents if each["is_chip"]]
    site.page(
        INDEX.href, "chips.html", title="Chips", lead="Dense peaks, memory and caches: each figure with its source.",
        tables=[_compared(chips, pages, whole), _architectures(documents, pages, whole)],
    )  # fmt: skip
    return pages


def pages_of_chips() -> dict[str, str]:
    """What `chip_pages` returns, with nothing written."""
    return _paths(chip_documents())


def _paths(documents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {each["name"]: f"chips/{each['id']}.html" for each in documents}


def _compared(chips: Sequence[Mapping[str, Any]], pages: Mapping[str, str], data: Mapping[str, str]) -> TableView:
    headings = [Heading("chip", False), Heading("vendor", False, True), Heading("architecture", False, True),
                *(Heading(name.removeprefix("peaks.")) for name in COMPARED)]  # fmt: skip
    rows = []
    for chip in chips:
        values = {value["name"]: value for value in chip["values"]}
        arch = pages.get(chip["arch"])
        rows.append([
            Cell(chip["name"], href=pages[chip["name"]]), Cell(chip["vendor"]), Cell(chip["arch"], href=arch),
            *(number(v["value"], v["shown"], f"{pages[chip['name']]}#{_anchor(name)}") if (v := values.get(name))
              else Cell(figures.DASH) for name in COMPARED),
        ])  # fmt: skip
    return TableView(
        "compared", "Ceilings", headings, rows, data, ["A dash: no source that was found gives the figure."]
    )


def _architectures(
    documents: Sequence[Mapping[str, Any]], pages: Mapping[str, str], data: Mapping[str, str]
) -> TableView:  # fmt: skip
    rows = [
        [Cell(each["name"], href=pages[each["name"]]), Cell(each["title"]), Cell(each["vendor"]),
         number(len(each["values"]), str(len(each["values"])))]
        for each in documents if not each["is_chip"]
    ]  # fmt: skip
    headings = [Heading("architecture", False), Heading("what", False), Heading("vendor", False), Heading("figures")]
    return TableView("architectures", "Architectures", headings, rows, data)


def _anchor(name: str) -> str:
    return "value-" + "".join(c if c.isalnum() else "-" for c in name)


def _page(
    site: Site, chip: Mapping[str, Any], pages: Mapping[str, str], whole: Mapping[str, str], cards: Collection[str]
) -> None:  # fmt: skip
    columns = ["name", "value", "unit", "source", "url", "date", "note"]
    data = site.csv(f"chips/{chip['id']}", columns, [{key: v[key] for key in columns} for v in chip["values"]]) | whole
    headings = [Heading("figure", False), Heading("value", False), Heading("in base units"), Heading("source", False),
                Heading("read on", False), Heading("remark", False)]  # fmt: skip
    rows = [
        [Cell(v["name"], kind="code", id=_anchor(v["name"])), Cell(v["shown"], _sortable(v["value"])),
         Cell(f"{v['value']:,.6g} {v['unit']}" if isinstance(v["value"], int | float) else "", _sortable(v["value"])),
         Cell(v["source"], href=v["url"], hint=None if v["url"] else v["where"], kind="wide"), Cell(v["date"]),
         Cell(v["note"], kind="wide" if v["note"] else None)]
        for v in chip["values"]
    ]  # fmt: skip
    plot = roofline_plot(chip, data) if chip["bandwidth"] else None
    facts = [("vendor", Cell(chip["vendor"])), ("architecture", Cell(chip["arch"], href=_other(chip, pages)))]
    if chip["card"] in cards:
        facts.append(("card of the wiki", Cell(chip["card"], href=f"wiki/{chip['card']}.html")))
    site.page(
        pages[chip["name"]], "chip.html", title=chip["title"], crumbs=(INDEX,), plots=plot is not None, plot=plot,
        facts=facts, note=chip["note"], table=TableView("values", "Figures and their sources", headings, rows, data),
    )  # fmt: skip


def _other(chip: Mapping[str, Any], pages: Mapping[str, str]) -> str | None:
    return pages.get(chip["arch"]) if chip["is_chip"] else None


def _sortable(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def roofline_plot(chip: Mapping[str, Any], data: Mapping[str, str]) -> Plot:
    """What a kernel can reach at an intensity, a line a dtype: bandwidth times intensity up to the peak.

    Dtypes of one engine with the same peak share a line.
    """
    lines: dict[tuple[str, float], list[str]] = {}
    for name, peak in chip["peaks"].items():
        engine, _, dtype = name.partition(".")
        lines.setdefault((engine, peak), []).append(dtype)
    traces = []
    for i, ((engine, peak), dtypes) in enumerate(sorted(lines.items(), key=lambda item: -item[0][1])):
        ridge = peak / chip["bandwidth"]
        xs = [_FROM, ridge, _TO] if _FROM < ridge < _TO else [_FROM, _TO]
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": f"{engine} {', '.join(dtypes)}",
            "x": [significant(x) for x in xs],
            "y": [significant(min(peak, x * chip["bandwidth"]) / 1e12) for x in xs],
            "line": {"color": COLOURS[i % len(COLOURS)], "dash": "solid" if engine == "matrix" else "dash"},
            "hovertemplate": "%{x:.3g} FLOP/byte: %{y:,.4g} TFLOP/s<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout = {
        "xaxis": {"type": "log", "title": {"text": "FLOP per byte"}},
        "yaxis": {"type": "log", "title": {"text": "TFLOP/s"}},
    }
    over = f"a memory bandwidth of {chip['bandwidth'] / 1e12:.3g} TB/s"
    what = f"Roofline of {chip['name']}: {len(traces)} peaks over {over}."
    return Plot("roofline", "Roofline", traces, layout, what, data)
