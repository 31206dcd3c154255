"""The wiki as data: its cards with their text as HTML, and an index that a page searches without a network."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from atrex.wiki.index import FIELDS, joined
from atrex.wiki.load import Wiki
from atrex.wiki.schema import Card, Kind

_CITED = re.compile(r"\[(\d{1,2})\](?!\()")
_WORD = re.compile(r"[a-z0-9_]+")
_SOURCE_BASE = "#source-"


def card_document(wiki: Wiki, card: Card) -> dict[str, Any]:
    """One card: its front matter, `html` of its text, and its relations either way with the other cards' titles."""
    front = card.model_dump(mode="json", exclude={"body", "relations"})
    return front | {
        "html": markdown(card.body, len(card.sources)),
        "related": [
            {"name": edge.name, "id": edge.other, "title": wiki.cards[edge.other].title}
            for edge in wiki.related(card.id) if edge.other in wiki.cards
        ],
    }  # fmt: skip


def listing(wiki: Wiki) -> list[dict[str, Any]]:
    """A row a card for browsing: id, kind, title, vendor, arch, dsl, operators, claim and levels of verification."""
    return [
        {
            "id": card.id, "kind": card.kind.value, "title": card.title, "vendor": card.vendor,
            "arch": list(card.arch), "dsl": list(card.dsl), "operators": list(card.operators),
            "claim": card.statement.claim if card.statement else "",
            "verified": sorted({v.level for v in card.verified}),
        }
        for card in sorted(wiki, key=lambda card: (list(Kind).index(card.kind), card.id))
    ]  # fmt: skip


def search_index(wiki: Wiki) -> dict[str, Any]:
    """Terms with the cards that hold them, weighted by field as in `atrex wiki search`.

    {"ids": [card], "terms": {word: [card's number, weight, card's number, weight, ...]}}. A weight counts how often a
    word stands in a field, dampened, times the field's weight, in hundredths and less for words that many cards have.
    """
    cards = list(wiki)
    weights: dict[str, dict[int, float]] = {}
    for number, card in enumerate(cards):
        for field, text in _fields(card).items():
            for word, count in Counter(words(text)).items():
                of = weights.setdefault(word, {})
                of[number] = of.get(number, 0.0) + FIELDS[field] * (count / (count + 1.2))
    terms = {}
    for word in sorted(weights):
        rare = 1.0 - len(weights[word]) / (len(cards) + 1)
        terms[word] = [n for i, w in sorted(weights[word].items()) for n in (i, max(1, round(100 * w * rare)))]
    return {"ids": [card.id for card in cards], "terms": terms}


def words(text: str) -> list[str]:
    """The words of a text as the index holds them: lower case, and compounds without their joints beside."""
    lower = text.lower()
    return [word for word in _WORD.findall(lower) if len(word) > 1] + joined(lower)


def _fields(card: Card) -> dict[str, str]:
    return {
        "id": card.id.replace("-", " "),
        "title": card.title,
        "words": " ; ".join(card.words),
        "operators": " ".join(name for name in card.operators if name != "any"),
        "claim": card.statement.claim if card.statement else "",
        "counters": " ".join(symptom.counter for symptom in card.symptoms),
        "body": card.body,
    }


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """CommonMark with tables. HTML in a text stays text, and links go nowhere but to http(s) and within the site."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.validateLink = lambda url: url.startswith(("https://", "http://", "#"))  # type: ignore[method-assign]
    return parser


def markdown(text: str, sources: int = 0) -> str:
    """The HTML of a Markdown text; [n] up to `sources` links to the source of that number on the page."""
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        if token.type == "inline" and token.children:
            token.children = [part for child in token.children for part in _cited(child, sources)]
        elif token.type == "heading_open" or token.type == "heading_close":
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    return parser.renderer.render(tokens, parser.options, {})


def _cited(token: Token, sources: int) -> list[Token]:
    """A text token with its [n] as links."""
    if token.type != "text":
        return [token]
    parts: list[Token] = []
    at = 0
    for match in _CITED.finditer(token.content):
        if not 1 <= int(match[1]) <= sources:
            continue
        parts.append(Token("text", "", 0, content=token.content[at : match.start()]))
        parts.append(Token("link_open", "a", 1, attrs={"href": f"{_SOURCE_BASE}{match[1]}"}))
        parts.append(Token("text", "", 0, content=match[0]))
        parts.append(Token("link_close", "a", -1))
        at = match.end()
    return [*parts, Token("text", "", 0, content=token.content[at:])]
