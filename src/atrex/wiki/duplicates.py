"""Cards that say the same twice."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from atrex.wiki.schema import SECTIONS, Card, prose

# Two texts of 150 to 400 words written apart share hardly a run of five words. A quarter of them is copied text; and
# where the weighted words agree as closely as this, the cards are about one thing even when no sentence is shared.
SHARED_RUNS = 0.25
SAME_WORDS = 0.85
_RUN = 5
_HEADINGS = {heading for headings in SECTIONS.values() for heading in headings}


def near_duplicates(cards: Sequence[Card]) -> Iterator[tuple[Card, Card, str]]:
    """Pairs of cards that are nearly the same, with what shows it."""
    texts = [_words(card) for card in cards]
    runs = [{tuple(text[i : i + _RUN]) for i in range(len(text) - _RUN + 1)} for text in texts]
    vectors = _weighted(texts)
    for a, b in combinations(range(len(cards)), 2):
        if cards[a].title.lower() == cards[b].title.lower():
            yield cards[a], cards[b], "the same title"
            continue
        smaller = min(len(runs[a]), len(runs[b]))
        shared = len(runs[a] & runs[b]) / smaller if smaller else 0.0
        if shared >= SHARED_RUNS:
            yield cards[a], cards[b], f"{shared:.0%} of the runs of {_RUN} words are the same"
            continue
        cosine = sum(weight * vectors[b].get(word, 0.0) for word, weight in vectors[a].items())
        if cosine >= SAME_WORDS:
            yield cards[a], cards[b], f"their words agree to {cosine:.2f}"


def _words(card: Card) -> list[str]:
    body = "\n".join(
        line for line in prose(card.body).splitlines() if line.removeprefix("## ").strip() not in _HEADINGS
    )
    claim = card.statement.claim if card.statement else ""
    return re.findall(r"[a-z0-9_]+", f"{card.title} {claim} {body}".lower())


def _weighted(texts: list[list[str]]) -> list[dict[str, float]]:
    """TF-IDF vectors of length one."""
    seen = Counter(word for text in texts for word in set(text))
    vectors = []
    for text in texts:
        vector = {word: n * math.log((1 + len(texts)) / seen[word]) for word, n in Counter(text).items()}
        norm = math.sqrt(sum(weight * weight for weight in vector.values())) or 1.0
        vectors.append({word: weight / norm for word, weight in vector.items()})
    return vectors
