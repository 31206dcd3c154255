"""All pages of a study of runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from atrex.report.site.analyses import analyses, navigation
from atrex.report.site.entries import Entries
from atrex.report.site.operators import INDEX, operator_pages
from atrex.report.site.overview import boards_page, overview_page
from atrex.report.site.page import Nav, Pages, Site
from atrex.report.site.sets import set_pages
from atrex.report.study.document import REPORT, Study, data_files

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
    overview_page(site, entries, data.get("overview", {}))
    boards_page(site, entries, data.get("main", {}))
    analyses(site, entries, data)
    operator_pages(site, entries)
    set_pages(site, entries)


def write_site(study: Study, folder: Path, suite: Path | None = None, optimized: Collection[str] = ()) -> Site:
    """Write a study as a site of its own. `suite` is where the suite is now, `optimized` as `Entries` takes it."""
    entries = Entries(study, suite, optimized)
    site = Site(folder, Pages(TITLE, runs_navigation(entries), study.notes))
    runs_pages(site, entries)
    site.close()
    return site
