"""Search over the cards: BM25 over fields for each concept of the question, then scope, relations and verification.

Offline and deterministic: the same question over the same cards gives the same answer.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.wiki.index import FIELDS, open_index
from atrex.wiki.load import CARDS
from atrex.wiki.query import Query, understand
from atrex.wiki.schema import Kind
from atrex.wiki.vocabulary import nearest, vocabulary

# A card that answers all that was asked counts whole, one that answers a part of it less.
COVERAGE = 0.5
# How a card's scope fits what the question names: exactly, not at all; what holds for anything stays as it is.
ARCH_FITS, VENDOR_FITS, ARCH_OTHER, VENDOR_OTHER = 1.2, 1.08, 0.55, 0.35
DSL_FITS, DSL_OTHER = 1.2, 0.45
OPERATOR_FITS, GROUP_FITS, OPERATOR_OTHER = 1.35, 1.12, 0.6
KIND_FITS, SHEET_UNASKED, KERNEL_UNASKED, PLAYBOOK_OF_OPERATOR = 1.3, 0.6, 0.75, 1.4
# "triton to gluon" asks for the recipe of that direction; the one back comes after it.
RECIPE_THERE, RECIPE_BACK = 1.4, 1.1
VERIFIED = {"measured": 1.08, "compiled": 1.03}
# Share of the score of the best hits that their relations pass on to other hits.
PASSED_ON, BEST = 0.08, 5
MISSPELT = 0.6
LEAST = 0.08  # of the best score: below it the match is an accident
_WEIGHTS = ", ".join(str(weight) for weight in FIELDS.values())


@dataclass(frozen=True)
class Filters:
    """Hard conditions. A card without a scope ("any") passes those on arch and dsl."""

    arch: str | None = None
    dsl: str | None = None
    kind: str | None = None
    operator: str | None = None

    def check(self) -> None:
        """Raise UserError for a word that is not known."""
        known = vocabulary()
        for name, value, words in (
            ("arch", self.arch, list(known.architectures)),
            ("dsl", self.dsl, list(known.dsls)),
            ("kind", self.kind, [kind.value for kind in Kind]),
            ("operator", self.operator, [*known.operators, *known.groups]),
        ):
            if value is not None and value not in words:
                hint = nearest(value, words) or ": expected one of " + ", ".join(words)
                raise UserError(f"--{name} {value}: unknown{hint}")

    def steps(self) -> list[tuple[str, Callable[[Mapping[str, Any]], bool]]]:
        """The conditions that are set, each as the option that sets it and a test of a card."""
        known = vocabulary()
        steps: list[tuple[str, Callable[[Mapping[str, Any]], bool]]] = []
        if self.arch is not None:
            vendors = ("any", known.vendor_of(self.arch))
            steps.append(
                (
                    f"--arch {self.arch}",
                    lambda c: self.arch in c["arch"] or c["arch"] == ["any"] and c["vendor"] in vendors,
                )
            )
        if self.dsl is not None:
            steps.append((f"--dsl {self.dsl}", lambda c: self.dsl in c["dsl"] or c["dsl"] == ["any"]))
        if self.operator is not None:
            wanted = known.with_groups([self.operator])
            steps.append((f"--operator {self.operator}", lambda c: bool(wanted & set(c["operators"]))))
        if self.kind is not None:
            steps.append((f"--kind {self.kind}", lambda c: self.kind == c["kind"]))
        return steps


@dataclass(frozen=True)
class Hit:
    """One card that answers. `found` are the concepts of the question that it has."""

    id: str
    kind: str
    title: str
    claim: str
    score: float
    arch: list[str]
    dsl: list[str]
    operators: list[str]
    verified: list[str]
    found: list[str]


@dataclass
class Answer:
    """The hits, best first; what was understood; and, where nothing is left, `why` in one line."""

    hits: list[Hit]
    understood: dict[str, list[str]] = field(default_factory=dict)
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"hits": [asdict(hit) for hit in self.hits], "understood": self.understood, "why": self.why}


def search(text: str, filters: Filters | None = None, k: int = 8, cards: Path = CARDS) -> Answer:
    """The `k` cards that answer a question best. Raises UserError for an empty question or an unknown filter."""
    filters = filters or Filters()
    filters.check()
    query = understand(text)
    connection = open_index(cards)
    try:
        return _answer(query, filters, k, connection)
    finally:
        connection.close()


def _answer(query: Query, filters: Filters, k: int, connection: sqlite3.Connection) -> Answer:
    understood = {
        "concepts": [concept.asked for concept in query.concepts],
        **{name: sorted(getattr(query, name)) for name in ("arch", "vendors", "dsl", "operators")},
    }
    cards = {row: json.loads(about) for row, about in connection.execute("SELECT rowid, about FROM card")}
    scores, found = _text_scores(query, connection, len(cards))
    if not scores:
        return Answer([], understood, _no_match(query))
    kept = dict(scores)
    for option, holds in filters.steps():
        left = {row: score for row, score in kept.items() if holds(cards[row])}
        if not left:
            return Answer([], understood, f"{option} leaves none of {len(kept)} cards that match; without it:" + _first(
                kept, cards
            ))  # fmt: skip
        kept = left
    ranked = {row: score * _fit(cards[row], query, filters) for row, score in kept.items()}
    ranked = _related(ranked, cards, connection)
    order = sorted(ranked, key=lambda row: (-ranked[row], cards[row]["id"]))
    least = LEAST * ranked[order[0]]
    hits = [
        Hit(
            **{name: value for name, value in cards[row].items() if name != "vendor"},
            score=round(ranked[row], 4),
            found=found[row],
        )
        for row in order[:k]
        if ranked[row] >= least
    ]  # fmt: skip
    return Answer(hits, understood)


def _text_scores(
    query: Query, connection: sqlite3.Connection, count: int
) -> tuple[dict[int, float], dict[int, list[str]]]:
    """BM25 of every card that has at least one concept, and which it has.

    A concept counts by the best of its phrases, so that a card gains nothing by using every synonym. FTS5 gives a word
    that most cards have no weight: its factor is taken out, and the form that stays positive put in.
    """
    scores: dict[int, float] = {}
    found: dict[int, list[str]] = {}
    covered: dict[int, float] = {}
    total = sum(concept.weight for concept in query.concepts)
    for concept in query.concepts:
        best = _concept_scores(concept.phrases, connection, count)
        if not best and (meant := _meant(concept.asked, connection)):
            best = _concept_scores({meant: MISSPELT}, connection, count)
        for row, score in best.items():
            scores[row] = scores.get(row, 0.0) + concept.weight * score
            covered[row] = covered.get(row, 0.0) + concept.weight
            found.setdefault(row, []).append(concept.asked)
    for row in scores:
        scores[row] *= COVERAGE + (1 - COVERAGE) * covered[row] / total
    return scores, found


def _concept_scores(phrases: Mapping[str, float], connection: sqlite3.Connection, count: int) -> dict[int, float]:
    best: dict[int, float] = {}
    for phrase, weight in phrases.items():
        rows = connection.execute(
            f"SELECT rowid, bm25(text, {_WEIGHTS}) FROM text WHERE text MATCH ?", (f'"{phrase}"',)
        ).fetchall()
        n = len(rows)
        theirs = max(math.log((count - n + 0.5) / (n + 0.5)), 1e-6)
        ours = math.log(1 + (count - n + 0.5) / (n + 0.5))
        for row, negative in rows:
            best[row] = max(best.get(row, 0.0), weight * -negative / theirs * ours)
    return best


def _meant(word: str, connection: sqlite3.Connection) -> str | None:
    """The word of the cards that a word of none of them was meant to be, if one is close."""
    if len(word) < 5 or not word.isalpha():
        return None
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.words USING fts5vocab('main', 'text', 'row')")
    alike = connection.execute(
        "SELECT term FROM temp.words WHERE term GLOB ? AND length(term) BETWEEN ? AND ?",
        (f"{word[0]}*", len(word) - 4, len(word) + 2),
    )
    near = get_close_matches(word, [term for (term,) in alike], n=1, cutoff=0.8)
    return near[0] if near else None


def _fit(card: Mapping[str, Any], query: Query, filters: Filters) -> float:
    known, fit = vocabulary(), 1.0
    archs = query.arch | ({filters.arch} if filters.arch else set())
    vendors = query.vendors | {known.vendor_of(arch) for arch in archs}
    if archs and card["arch"] != ["any"]:
        fit *= ARCH_FITS if archs & set(card["arch"]) else ARCH_OTHER
    if vendors and card["vendor"] != "any":
        fit *= VENDOR_FITS if card["vendor"] in vendors else VENDOR_OTHER
    dsls = query.dsl | ({filters.dsl} if filters.dsl else set())
    if dsls and card["dsl"] != ["any"]:
        fit *= DSL_FITS if dsls & set(card["dsl"]) else DSL_OTHER
    operators = query.operators | ({filters.operator} if filters.operator else set())
    if operators and card["operators"] != ["any"]:
        named = set(card["operators"])
        if operators & named:
            fit *= OPERATOR_FITS
        else:
            fit *= GROUP_FITS if known.with_groups(operators) & named else OPERATOR_OTHER
    if card["kind"] == "hardware":
        fit *= KIND_FITS if "hardware" in query.kinds and archs else SHEET_UNASKED
    elif card["kind"] in query.kinds:
        fit *= KIND_FITS
        if card["kind"] == "recipe" and len(query.languages) == 2:
            there, back = "-to-".join(query.languages), "-to-".join(reversed(query.languages))
            fit *= {there: RECIPE_THERE, back: RECIPE_BACK}.get(card["id"], 1.0)
    elif card["kind"] == "kernel" and filters.kind is None:
        fit *= KERNEL_UNASKED
    elif card["kind"] == "playbook" and operators & set(card["operators"]):
        fit *= PLAYBOOK_OF_OPERATOR
    return fit * max((VERIFIED[level] for level in card["verified"]), default=1.0)


def _related(ranked: dict[int, float], cards: Mapping[int, Any], connection: sqlite3.Connection) -> dict[int, float]:
    rows = {card["id"]: row for row, card in cards.items()}
    best = sorted(ranked, key=lambda row: (-ranked[row], cards[row]["id"]))[:BEST]
    gained = dict(ranked)
    for row in best:
        for (other,) in connection.execute("SELECT DISTINCT other FROM edge WHERE card = ?", (cards[row]["id"],)):
            if rows.get(other) in gained:
                gained[rows[other]] += PASSED_ON * ranked[row]
    return gained


def _first(kept: Mapping[int, float], cards: Mapping[int, Any]) -> str:
    order = sorted(kept, key=lambda row: (-kept[row], cards[row]["id"]))
    return " " + ", ".join(cards[row]["id"] for row in order[:3])


def _no_match(query: Query) -> str:
    return f"no card says {' or '.join(repr(concept.asked) for concept in query.concepts)}"
