"""What a wiki must hold to: schema, links, sources, testable statements, figures with a source, no card twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import atrex
from atrex.errors import UserError
from atrex.wiki.duplicates import near_duplicates
from atrex.wiki.hardware import hardware_cards
from atrex.wiki.kernels import check_kernel, unlisted_kernels
from atrex.wiki.load import CARDS, Wiki, card_files, read_card
from atrex.wiki.schema import CLAIMING, REVIEW, SECTIONS, Card, Kind, prose
from atrex.wiki.vocabulary import nearest, vocabulary

WORDS = (150, 400)
KERNEL_WORDS = (40, 400)

CITATION = re.compile(r"\[((?:\d+|calc|rule)(?:, ?(?:\d+|calc|rule))*)\](?!\()")
# A figure that somebody measured or printed: a number with a unit of time, rate, size, share or power. Counts of
# threads, tiles and dimensions are choices and need no source.
_FIGURE = re.compile(
    r"(?<![\w.])\d[\d,.]*\s?(?:%|x(?!\w)|times\b|percent\b|[nmuµ]?s(?![\w/])|[kMGTP]?B/s|[GTP]FLOP(?:/s|S)?\b|[KMGT]i?B\b"
    r"|cycles?\b|[GM]Hz\b|W\b)"
)


@dataclass(frozen=True)
class Finding:
    """One thing to mend: the card's file or id, the field, and what is wrong. A note does not fail the check."""

    card: str
    field: str
    message: str
    note: bool = False

    def __str__(self) -> str:
        return f"{self.card}: {self.field}: {self.message}"


def checkout() -> Path | None:
    """The project's folder when this runs from a checkout, where docs/ and results/ can be looked at; else None."""
    root = Path(atrex.__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "docs").is_dir() else None


def check_cards(folder: Path = CARDS, root: Path | None = None) -> tuple[Wiki, list[Finding]]:
    """Check every card below a folder, and the hardware sheets; what could be read comes back beside the findings.

    `root` is where project paths among the sources are looked up; without one they are not.
    """
    findings: list[Finding] = []
    cards: dict[str, Card] = {card.id: card for card in hardware_cards()}
    for path in card_files(folder):
        try:
            card = read_card(path)
        except UserError as error:
            findings.append(Finding(f"{path.parent.name}/{path.name}", "schema", _without(str(error), path)))
            continue
        if card.id in cards:
            findings.append(Finding(card.id, "id", f"used by {cards[card.id].kind} and {card.kind}"))
        cards[card.id] = card
    stray = [path for path in folder.rglob("*") if path.is_file() and path not in set(card_files(folder))]
    findings += [Finding(str(path.relative_to(folder)), "file", "expected <kind>/<id>.md") for path in stray]
    wiki = Wiki(cards)
    for card in wiki:
        findings += check_card(card, root)
    if root is not None:
        findings += [Finding(name, "kernel", message) for name, message in unlisted_kernels(wiki)]
        for card in wiki:
            if card.kind == Kind.KERNEL:
                findings += [Finding(card.id, field, message) for field, message in check_kernel(card, wiki, root)]
    findings += check_links(wiki, {path.stem for path in card_files(folder)})
    findings += [
        Finding(a.id, "duplicate", f"nearly {b.id}: {why}")
        for a, b, why in near_duplicates([card for card in wiki if card.kind != Kind.HARDWARE])
    ]
    return wiki, findings


def _without(message: str, path: Path) -> str:
    return message.removeprefix(str(path)).lstrip(": ")


def check_card(card: Card, root: Path | None = None) -> Iterator[Finding]:
    """What is wrong with one card by itself."""
    for field, message in (
        *_scope(card),
        *_sections(card),
        *_statement(card),
        *_sources(card, root),
        *_figures(card),
        *_length(card),
        *_records(card, root),
        *_reviewed(card),
    ):
        yield Finding(card.id, field, message)


def _scope(card: Card) -> Iterator[tuple[str, str]]:
    known = vocabulary()
    for field, names, words in (
        ("arch", card.arch, list(known.architectures)),
        ("dsl", card.dsl, list(known.dsls)),
        ("operators", card.operators, [*known.operators, *known.groups]),
    ):
        for name in names:
            if name != "any" and name not in words:
                yield field, f"unknown {name!r}{nearest(name, words) or ': expected one of ' + ', '.join(words)}"
    for arch in card.arch:
        if card.vendor != "any" and arch in known.architectures and known.vendor_of(arch) != card.vendor:
            yield "arch", f"{arch} is not {card.vendor}'s"
    for symptom in card.symptoms:
        if "any" not in (card.vendor, symptom.vendor) and symptom.vendor != card.vendor:
            yield "symptoms", f"{symptom.counter} is no counter of {card.vendor}"


def _sections(card: Card) -> Iterator[tuple[str, str]]:
    expected, found = SECTIONS[card.kind], card.sections
    for heading in expected:
        if not found.get(heading):
            yield "body", f"section '## {heading}' is missing or empty"
    order = [heading for heading in found if heading in expected]
    if order != [heading for heading in expected if heading in found]:
        yield "body", f"sections stand in another order than {', '.join(expected)}"


def _statement(card: Card) -> Iterator[tuple[str, str]]:
    if card.statement is None:
        if card.kind in CLAIMING:
            yield "statement", f"a {card.kind} needs claim and test"
    elif "`" not in card.statement.test and not re.search(r"\d", card.statement.test):
        yield "statement.test", "names nothing to observe: a counter or command in backticks, or a number"


def _sources(card: Card, root: Path | None) -> Iterator[tuple[str, str]]:
    if not card.sources:
        yield "sources", "none"
    for number, source in enumerate(card.sources, 1):
        if not re.match(r"https?://[^\s/]+\.[^\s/]+", source.where):
            path = source.where.partition("#")[0]
            if re.match(r"^[a-z]+:|/|\.\.", path):
                yield f"sources.{number}", f"{source.where!r}: expected an http(s) address or a path in the project"
            elif root is not None and not (root / path).exists():
                yield f"sources.{number}", f"{source.where!r}: no such file in the project"
        if source.date > date.today():
            yield f"sources.{number}", f"dated {source.date}, which is yet to come"
    claim = card.statement.claim if card.statement else ""
    cited = {int(n) for n in _cited(_plain(card.body)) + _cited(_plain(claim)) if n.isdigit()}
    cited |= {evidence.source for evidence in card.evidence}
    for number in sorted(cited - set(range(1, len(card.sources) + 1))):
        yield "sources", f"[{number}] is cited, but there are {len(card.sources)} sources"
    for number in sorted(set(range(1, len(card.sources) + 1)) - cited):
        yield f"sources.{number}", "cited nowhere: put its number in brackets behind what it says"


def _plain(text: str) -> str:
    """The text without code, in which a number in brackets is an index or a shape."""
    return re.sub(r"`[^`]*`", "", prose(text))


def _records(card: Card, root: Path | None) -> Iterator[tuple[str, str]]:
    for number, verification in enumerate(card.verified, 1):
        if not re.match(r"results/[\w./-]+$", verification.record) or ".." in verification.record:
            yield f"verified.{number}", f"{verification.record!r}: expected a record under results/"
        elif root is not None and not (root / verification.record).exists():
            yield f"verified.{number}", f"{verification.record}: no such record in the project"


def _cited(text: str) -> list[str]:
    return [name for match in CITATION.findall(text) for name in re.split(r", ?", match)]


def _figures(card: Card) -> Iterator[tuple[str, str]]:
    blocks = blocks_of(card.body)
    if card.statement is not None:
        blocks.append(card.statement.claim)
    for block in blocks:
        plain = _plain(block)
        figure = _FIGURE.search(plain)
        if figure and not CITATION.search(plain):
            start = " ".join(plain.split())[:60]
            yield "figures", f"{figure.group().strip()!r} has no source in '{start}...': [n], [calc] or [rule]"


def blocks_of(body: str) -> list[str]:
    """Paragraphs, list items, and tables with the paragraph before them: where a citation covers the figures."""
    blocks: list[str] = []
    for paragraph in re.split(r"\n\s*\n", prose(body)):
        lines = [line for line in paragraph.splitlines() if line.strip() and not line.startswith("#")]
        if not lines:
            continue
        if lines[0].startswith("|") and blocks:
            blocks[-1] += "\n" + "\n".join(lines)
            continue
        for i, line in enumerate(lines):
            if i and not re.match(r"\s*([-*]|\d+\.) ", line):
                blocks[-1] += "\n" + line
            else:
                blocks.append(line)
    return blocks


def _reviewed(card: Card) -> Iterator[tuple[str, str]]:
    """What a draft left to its reviewer."""
    said = (card.statement.claim, card.statement.test) if card.statement else ()
    left = sum(text.count(REVIEW) for text in (card.title, card.mechanism or "", card.body, *said))
    if left:
        yield "review", f"{left} lines with {REVIEW} are left; say what they ask for, and take them out"


def _length(card: Card) -> Iterator[tuple[str, str]]:
    if card.kind == Kind.HARDWARE:
        return
    least, most = KERNEL_WORDS if card.kind == Kind.KERNEL else WORDS
    lines = [line for line in prose(card.body).splitlines() if not line.startswith("#")]
    tables = sum(len(line.replace("|", " ").split()) for line in lines if line.startswith("|"))
    text = sum(len(line.split()) for line in lines if not line.startswith("|"))
    if text > most:
        yield "length", f"{text} words outside tables and code, expected at most {most}"
    elif text + tables < least:
        yield "length", f"{text + tables} words, expected at least {least}"


def check_links(wiki: Wiki, known: set[str]) -> Iterator[Finding]:
    """Relations that lead nowhere, to the card itself, or twice to one card; cards that nothing is related to."""
    for card in wiki:
        others = [other for _, other in card.edges]
        for relation, other in card.edges:
            if other == card.id:
                yield Finding(card.id, f"relations.{relation}", "the card itself")
            elif other not in known and other not in wiki.cards:
                hint = nearest(other, [*known, *wiki.cards])
                yield Finding(card.id, f"relations.{relation}", f"no card {other!r}{hint}")
        for other in sorted({other for other in others if others.count(other) > 1}):
            yield Finding(card.id, "relations", f"{other} twice: keep the relation that says most")
        if card.kind != Kind.HARDWARE and not wiki.related(card.id):
            yield Finding(card.id, "relations", "none in either direction", note=True)
