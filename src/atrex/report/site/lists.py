"""Pages that lead to campaigns and to trace data sets, and a first page where no run is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atrex.report import figures
from atrex.report.site.page import Nav, Site
from atrex.report.site.table import Cell, Heading, TableView, number

CAMPAIGNS = Nav("Campaigns", "campaigns/index.html")
TRACES = Nav("Traces", "traces/index.html")
FIRST = Nav("Overview", "index.html")


@dataclass(frozen=True)
class Told:
    """What other pages say of a campaign or a data set: its title, its page and its document.

    `fault` is why there are no pages of it; the document is then empty.
    """

    title: str
    href: str
    document: Mapping[str, Any]
    fault: str | None = None


def campaigns_page(site: Site, told: Sequence[Told]) -> None:
    """Write the list of campaigns."""
    table = campaigns_table(site, told)
    site.page(CAMPAIGNS.href, "chips.html", title="Campaigns", lead=_CAMPAIGNS, tables=[table])


def traces_page(site: Site, told: Sequence[Told]) -> None:
    """Write the list of trace data sets."""
    site.page(TRACES.href, "chips.html", title="Traces", lead=_TRACES, tables=[traces_table(site, told)])


def first_page(site: Site, campaigns: Sequence[Told], traces: Sequence[Told], lead: str) -> None:
    """Write the first page of a site without runs."""
    tables = [*([campaigns_table(site, campaigns)] if campaigns else []),
              *([traces_table(site, traces)] if traces else [])]  # fmt: skip
    site.page(FIRST.href, "chips.html", title="Overview", lead=lead, tables=tables)


_CAMPAIGNS = "Each makes one kernel faster; every claim in it was measured."
_TRACES = "Where the device time of serving runs goes."


def campaigns_table(site: Site, told: Sequence[Told]) -> TableView:
    rows, flat = [], []
    for each in told:
        if each.fault is not None:
            rows.append([Cell(each.title, href=each.href), Cell(each.fault, kind="failed"), *[Cell("")] * 10])
            continue
        s, all_, spend = (each.document[key] for key in ("settings", "summary", "spend"))
        flat.append({"campaign": each.title, **{k: s[k] for k in ("operator", "dsl", "chip", "agent", "model")}, **all_,
                     "usd": spend["usd"], "tokens": spend["tokens"],
                     "waits_for": each.document["position"]["waits_for"]})  # fmt: skip
        rows.append([
            Cell(each.title, href=each.href, kind="wide"), Cell(each.document["position"]["waits_for"]),
            Cell(s["operator"]), Cell(s["dsl"]), Cell(s["chip"]), Cell(s["agent"] or "by hand"),
            number(all_["iterations"], str(all_["iterations"])), number(all_["accepted"], str(all_["accepted"])),
            number(all_["baseline_S"], figures.score(all_["baseline_S"])),
            number(all_["incumbent_S"], figures.score(all_["incumbent_S"])),
            number(all_["ratio"], figures.ratio(all_["ratio"])),
            number(spend["usd"], figures.DASH if spend["usd"] is None else f"{spend['usd']:.2f}"),
        ])  # fmt: skip
    headings = [Heading("campaign", False), Heading("waits for", False), Heading("operator", False, True),
                Heading("DSL", False, True), Heading("chip", False, True), Heading("agent", False, True),
                Heading("iterations"), Heading("accepted"), Heading("baseline S"), Heading("S"),
                Heading("over the baseline"), Heading("USD")]  # fmt: skip
    for row in flat:
        row["outcomes"] = figures.counts(row["outcomes"])
    data = site.csv("campaigns", list(flat[0]) if flat else [], flat)
    return TableView("campaigns", "Campaigns", headings, rows, data, empty="no campaign")


def traces_table(site: Site, told: Sequence[Told]) -> TableView:
    rows, flat = [], []
    for each in told:
        if each.fault is not None:
            rows.append([Cell(each.title, href=each.href), Cell(each.fault, kind="failed"), *[Cell("")] * 6])
            continue
        document, time = each.document, each.document["time"] or {}
        unmapped = (document["unmapped"] or {}).get("share")
        apps = [app["application"] for app in document["applications"]]
        ns, mapped, operators = (time.get(key) for key in ("total_ns", "mapped", "operators"))
        flat.append({"data_set": each.title, "traces": len(document["traces"]), "applications": ", ".join(apps),
                     "device_ns": ns, "mapped": mapped, "operators": operators, "unmapped": unmapped})  # fmt: skip
        rows.append([
            Cell(each.title, href=each.href), Cell("; ".join(document["notes"])),
            number(len(document["traces"]), str(len(document["traces"]))), Cell(", ".join(apps)),
            number(ns, figures.DASH if ns is None else f"{ns / 1e6:,.3f}"), number(mapped, figures.percent(mapped)),
            number(operators, figures.percent(operators)), number(unmapped, figures.percent(unmapped)),
        ])  # fmt: skip
    headings = [Heading("data set", False), Heading("notes", False), Heading("traces"), Heading("applications", False),
                Heading("ms of device time"), Heading("mapped"), Heading("the suite's operators"),
                Heading("unmapped")]  # fmt: skip
    data = site.csv("traces", list(flat[0]) if flat else [], flat)
    return TableView("traces", "Data sets of traces", headings, rows, data, empty="no data set of traces")
