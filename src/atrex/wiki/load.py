"""Read cards from files, and walk the relations between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from atrex.errors import UserError
from atrex.wiki.hardware import hardware_cards
from atrex.wiki.schema import INVERSE, Card
from atrex.wiki.vocabulary import nearest, read_yaml

CARDS = Path(__file__).parent / "cards"


def parse_card(text: str, where: str) -> Card:
    """The card in a file's text; `where` names the file in errors.

    Raises UserError with one line: the field, and what was expected.
    """
    import yaml

    if not text.startswith("---\n"):
        raise UserError(f"{where}: expected YAML front matter between two lines of ---")
    front, end, body = text[4:].partition("\n---\n")
    if not end:
        raise UserError(f"{where}: the front matter is not closed by a line of ---")
    try:
        data = read_yaml(front)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{where}:{mark.line + 2}" if mark else where
        raise UserError(f"{line}: not valid YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(data, dict):
        raise UserError(f"{where}: front matter: expected fields, one a line")
    if "body" in data:
        raise UserError(f"{where}: body: the text stands below the front matter")
    try:
        return Card.model_validate(data | {"body": body.strip() + "\n"})
    except ValidationError as error:
        raise UserError(f"{where}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{field}: {message}{more}" if field else f"{message}{more}"


def card_files(folder: Path = CARDS) -> list[Path]:
    """The card files below a folder, in order of their paths."""
    return sorted(folder.glob("*/*.md"))


def read_card(path: Path) -> Card:
    """One card file. Raises UserError; the file's name must be the card's id, its folder the card's kind."""
    card = parse_card(path.read_text(), str(path))
    if path.stem != card.id:
        raise UserError(f"{path}: id: {card.id!r}, expected the file's name, {path.stem!r}")
    if path.parent.name != card.kind:
        raise UserError(f"{path}: kind: {card.kind}, but the file lies in {path.parent.name}/")
    return card


@dataclass(frozen=True)
class Edge:
    """One step from a card: `name` is the relation's, or its inverse's when the other card declares it."""

    name: str
    other: str
    outward: bool


@dataclass(frozen=True)
class Wiki:
    """All cards by id."""

    cards: Mapping[str, Card]

    def __iter__(self) -> Iterator[Card]:
        return iter(self.cards.values())

    def card(self, card_id: str) -> Card:
        """The card of this id; UserError with the nearest ids otherwise."""
        if card_id not in self.cards:
            raise UserError(f"no card {card_id!r}{nearest(card_id, list(self.cards))}")
        return self.cards[card_id]

    @cached_property
    def _edges(self) -> dict[str, list[Edge]]:
        edges: dict[str, list[Edge]] = {card_id: [] for card_id in self.cards}
        for card in self:
            for relation, other in card.edges:
                edges[card.id].append(Edge(relation.value, other, True))
                if other in edges:
                    edges[other].append(Edge(INVERSE[relation], card.id, False))
        return edges

    def related(self, card_id: str) -> list[Edge]:
        """The edges of a card in both directions, its own first."""
        edges = self._edges[self.card(card_id).id]
        return sorted(edges, key=lambda edge: (not edge.outward, edge.name, edge.other))

    def walk(self, card_id: str, steps: int) -> dict[str, int]:
        """Cards within `steps` relations, either way, with their distance; the card itself is at 0."""
        distance = {self.card(card_id).id: 0}
        frontier = [card_id]
        for step in range(1, steps + 1):
            reached = [edge.other for at in frontier for edge in self._edges.get(at, ()) if edge.other in self.cards]
            frontier = [other for other in dict.fromkeys(reached) if other not in distance]
            distance |= dict.fromkeys(frontier, step)
        return distance


def load_wiki(folder: Path = CARDS) -> Wiki:
    """Every card below a folder, and the hardware sheets.

    Raises UserError when there is no such folder, for the first file that is no card, and for an id used twice.
    """
    if not folder.is_dir():
        raise UserError(f"--cards {folder}: no such folder")
    cards: dict[str, Card] = {card.id: card for card in hardware_cards()}
    for path in card_files(folder):
        card = read_card(path)
        if card.id in cards:
            raise UserError(f"{path}: id {card.id!r} is another card's: {cards[card.id].kind}/{card.id}.md")
        cards[card.id] = card
    return Wiki(cards)
