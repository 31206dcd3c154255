"""A whole site: pages of runs, campaigns, trace data sets, chips and the wiki under one navigation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from atrex.errors import UserError
from atrex.optimize.store import Campaign
from atrex.report.site import chips, wiki
from atrex.report.site.campaign import campaign_pages
from atrex.report.site.entries import Entries
from atrex.report.site.lists import CAMPAIGNS, FIRST, TRACES, Told, campaigns_page, first_page, traces_page
from atrex.report.site.page import Pages, Site
from atrex.report.site.runs import TITLE, runs_navigation, runs_pages
from atrex.report.sources import Kind, Source, names
from atrex.report.study.document import Study
from atrex.scoring.weights import published_weights
from atrex.wiki.load import Wiki, load_wiki

REFERENCE = (chips.INDEX, wiki.INDEX)


def write_whole(
    folder: Path, study: Study | None, sources: Sequence[Source], suite: Path | None = None, jobs: int | None = None
) -> Site:  # fmt: skip
    """Write a site over a study of runs, campaigns and trace data sets, as far as there are any.

    `suite` is where the suite is now; `jobs` are the processes that read traces. Raises UserError for a folder that
    cannot be written, and for a campaign or a data set that is damaged.
    """
    campaigns = [source.path for source in sources if source.kind is Kind.CAMPAIGN]
    traces = [source.path for source in sources if source.kind is Kind.TRACES]
    entries = Entries(study, suite, accepted(campaigns)) if study else None
    nav = [*(runs_navigation(entries) if entries else [FIRST]), *([CAMPAIGNS] if campaigns else []),
           *([TRACES] if traces else []), *REFERENCE]  # fmt: skip
    site = Site(folder, Pages(TITLE, nav, study.notes if study else ()))
    cards = load_wiki()
    of_chips = chips.chip_pages(site, cards.cards)
    wiki.wiki_pages(site, cards)
    called = names([*campaigns, *traces])
    optimized = [campaign_pages(site, path, called[path], titles(cards), of_chips) for path in campaigns]
    traced = [traced_pages(site, path, called[path], jobs) for path in traces]
    if optimized:
        campaigns_page(site, optimized)
    if traced:
        traces_page(site, traced)
    if entries is not None:
        runs_pages(site, entries)
    else:
        first_page(site, optimized, traced, "No run is among these.")
    site.close()
    return site


def traced_pages(site: Site, path: Path, name: str, jobs: int | None) -> Told:
    """The pages of one data set. Raises UserError where the libraries for traces are not installed."""
    try:
        from atrex.report.site.trace import trace_pages
    except ImportError:
        raise UserError(f"{path}: pages of traces need their libraries: pip install 'atrex[traces]'") from None
    return trace_pages(site, path, name, published_weights().values, jobs)


def titles(cards: Wiki) -> Callable[[str], str | None]:
    """The title of a card by its id, None for what is no card of the wiki."""
    return lambda card: cards.cards[card].title if card in cards.cards else None


def accepted(campaigns: Sequence[Path]) -> set[str]:
    """Hashes of the kernels that campaigns accepted beyond their baselines."""
    records = (record for path in campaigns for record in Campaign(path).memory)
    return {
        record.validation.candidate_sha256 for record in records if record.accepted and record.incumbent is not None
    }
