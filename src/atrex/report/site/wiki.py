"""Pages of the wiki: the list of cards with a search that needs no network, and a page a card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from atrex.report.cards import card_document, listing, search_index
from atrex.report.site.page import Nav, Site, asset
from atrex.report.site.table import Cell, Heading, TableView
from atrex.wiki.load import Wiki

INDEX = Nav("Wiki", "wiki/index.html")
SCRIPT, TERMS = "assets/wiki.js", "wiki/terms.js"


def wiki_pages(site: Site, wiki: Wiki) -> None:
    """Write the list, a page a card and the terms that the list's search looks up."""
    rows_ = listing(wiki)
    data = site.json("wiki", rows_) | site.csv("wiki", list(rows_[0]), [_flat(row) for row in rows_])
    site.text(SCRIPT, asset(SCRIPT))
    # A script and no JSON file: a page that is opened from disk cannot fetch one.
    site.text(TERMS, f"window.atrexTerms = {json.dumps(search_index(wiki), separators=(',', ':'))};\n")
    headings = [Heading("card", False), Heading("title", False), Heading("kind", False, True),
                Heading("vendor", False, True), Heading("architecture", False, True, many=True),
                Heading("DSL", False, True, many=True), Heading("operators", False),
                Heading("verified", False, True, many=True)]  # fmt: skip
    rows = [
        [Cell(row["id"], href=f"wiki/{row['id']}.html", kind="code"),
         Cell(row["title"], hint=row["claim"] or None, kind="wide"), Cell(row["kind"]), Cell(row["vendor"]),
         *(Cell(", ".join(row[key])) for key in ("arch", "dsl", "operators")),
         Cell(", ".join(row["verified"]) or "sources")]
        for row in rows_
    ]  # fmt: skip
    cards = TableView("wiki-cards", "Cards", headings, rows, data)
    site.page(
        INDEX.href, "wiki.html", title="Wiki", cards=cards, scripts=(TERMS, SCRIPT), count=len(rows),
    )  # fmt: skip
    for card in wiki:
        about = card_document(wiki, card)
        site.page(
            f"wiki/{card.id}.html", "card.html", title=card.title, crumbs=(INDEX,), card=about,
            html=Markup(about["html"]), facts=_facts(about),
        )  # fmt: skip


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: ", ".join(value) if isinstance(value, list) else value for key, value in row.items()}


def _facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("id", card["id"]), ("kind", card["kind"]), ("vendor", card["vendor"])]
    facts += [(key, ", ".join(card[key])) for key in ("arch", "dsl", "operators") if list(card[key]) != ["any"]]
    for symptom in card["symptoms"]:
        low, high = symptom["min"], symptom["max"]
        span = f"from {low:g}" if high is None else f"up to {high:g}" if low is None else f"{low:g} to {high:g}"
        facts.append(("symptom", f"{symptom['counter']} {span}" + (f" ({symptom['note']})" if symptom["note"] else "")))
    if card["statement"]:
        facts += [("claim", card["statement"]["claim"]), ("how to test it", card["statement"]["test"])]
    facts += [("mechanism", card["mechanism"])] if card["mechanism"] else []
    facts += [("evidence", f"{each['what']} [{each['source']}]") for each in card["evidence"]]
    facts += [("kernel", card["kernel"])] if card["kernel"] else []
    for each in card["verified"]:
        twin = f", twin {each['twin']}" if each["twin"] else ""
        facts.append(("verified", f"{each['level']} on {each['chip']}, {each['date']}: {each['record']}{twin}"))
    return facts
