"""All pages of a study of runs."""

from __future__ import annotations

from atrex.report.site.analyses import analyses, navigation
from atrex.report.site.entries import Entries
from atrex.report.site.operators import INDEX, operator_pages
from atrex.report.site.overview import boards_page, overview_page
from atrex.report.site.page import Nav, Site
from atrex.report.site.sets import set_pages
from atrex.report.study.document import REPORT, data_files

TITLE = "Atrex report"


def runs_navigation(entries: Entries) -> list[Nav]:
    """What the pages of runs add to the navigation."""
    return [Nav("Overview", "index.html"), Nav("Leaderboards", "boards.html"), INDEX, *navigation(entries)]


def runs_pages(site: Site, entries: Entries) -> None:
    """Write every page of a study, and its tables as files below `data/`."""
    data: dict[str, dict[str, str]] = {}
    for name, text in data_files(entries.study).items():
        path = site.text(f"data/{name}", text)
        if name != REPORT:
            data[name.removesuffix(".csv")] = {"CSV": path}
    overview_page(site, entries, data)
    boards_page(site, entries)
    analyses(site, entries, data)
    operator_pages(site, entries)
    set_pages(site, entries)
