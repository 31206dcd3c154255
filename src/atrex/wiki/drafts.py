"""Drafts of cards: in a folder of their own, never searched, checked like cards, and not cards before a review."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.files import write
from atrex.wiki.check import Finding, check_card
from atrex.wiki.duplicates import near_duplicates
from atrex.wiki.load import CARDS, Wiki, card_files, parse_card, read_card
from atrex.wiki.schema import Card
from atrex.wiki.vocabulary import nearest

FOLDER = Path("wiki-drafts")


@dataclass(frozen=True)
class Written:
    """A draft's file. `new` is false for one that was there before: what a reviewer changed stays."""

    path: Path
    new: bool


def write_draft(folder: Path, front: dict[str, Any], body: str) -> Written:
    """Write a card's text to <folder>/<kind>/<id>.md.

    Raises UserError for what would be no card, and for the cards' own folder.
    """
    import yaml

    if folder.resolve().is_relative_to(CARDS.resolve()):
        raise UserError(f"--to {folder}: holds cards; drafts stay apart until somebody has reviewed them")
    path = folder / front["kind"] / f"{front['id']}.md"
    if path.exists():
        return Written(path, new=False)
    told = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=10_000)
    text = f"---\n{told}---\n\n{body.strip()}\n"
    parse_card(text, str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return Written(path, new=True)


def check_drafts(folder: Path, wiki: Wiki, root: Path | None = None) -> tuple[list[Card], list[Finding]]:
    """What stands between drafts and cards: all that is wrong with a card, and what is left to review.

    `wiki` are the cards, which a draft may be related to and must not repeat.
    """
    drafts, found = [], []
    for path in card_files(folder):
        try:
            drafts.append(read_card(path))
        except UserError as error:
            found.append(Finding(f"{path.parent.name}/{path.name}", "schema", str(error).partition(": ")[2]))
    known = {*wiki.cards, *(draft.id for draft in drafts)}
    for draft in drafts:
        found += check_card(draft, root)
        found += _links(draft, wiki, known)
    ids = {draft.id for draft in drafts}
    for a, b, why in near_duplicates([*wiki, *drafts]) if drafts else ():
        if (a.id in ids) != (b.id in ids):
            draft, card = (a, b) if a.id in ids else (b, a)
            found.append(Finding(draft.id, "duplicate", f"nearly the card {card.id}: {why}"))
    return drafts, found


def _links(draft: Card, wiki: Wiki, known: set[str]) -> Iterator[Finding]:
    if draft.id in wiki.cards:
        yield Finding(draft.id, "id", "is a card's already")
    for relation, other in draft.edges:
        if other not in known:
            yield Finding(draft.id, f"relations.{relation}", f"no card {other!r}{nearest(other, list(known))}")
