"""How well search answers a fixed set of questions: recall@5 and nDCG@8, printed, and not to fall.

`python -m tests.wiki.test_golden` prints the figures and the open questions that are answered badly.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from atrex.wiki.load import load_wiki
from atrex.wiki.search import Filters, search

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def recall_at_5(relevant: list[str], found: list[str]) -> float:
    """Share of the relevant cards (of five, where there are more) among the first five."""
    return len(set(relevant) & set(found[:5])) / min(5, len(relevant))


def ndcg_at_8(relevant: list[str], found: list[str]) -> float:
    """Discounted gain of the first eight over that of the best order; a card is relevant or not."""
    gain = sum(1 / math.log2(rank + 2) for rank, card in enumerate(found[:8]) if card in relevant)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(8, len(relevant))))


def answers() -> list[tuple[dict, float, float, list[str]]]:
    """Every question with its recall@5, its nDCG@8 and what was found."""
    rows = []
    for entry in GOLDEN["questions"]:
        hits = search(entry["question"], Filters(arch=entry["arch"], dsl=entry["dsl"]), k=8).hits
        found = [hit.id for hit in hits]
        rows.append((entry, recall_at_5(entry["relevant"], found), ndcg_at_8(entry["relevant"], found), found))
    return rows


def figures(rows: list[tuple[dict, float, float, list[str]]]) -> dict[str, float]:
    return {
        "recall@5": sum(row[1] for row in rows) / len(rows),
        "ndcg@8": sum(row[2] for row in rows) / len(rows),
    }


@pytest.fixture(scope="module")
def rows():
    return answers()


def test_every_question_is_answered_by_cards_that_are_there():
    known = load_wiki().cards
    missing = {card for entry in GOLDEN["questions"] for card in entry["relevant"] if card not in known}
    assert not missing


@pytest.mark.parametrize("held_out", [False, True])
def test_recall_and_ndcg_do_not_fall(rows, held_out, capsys):
    part = [row for row in rows if row[0]["held_out"] == held_out]
    if not part:
        pytest.skip("no such questions")
    measured = figures(part)
    with capsys.disabled():
        which = "held out" if held_out else "open"
        print(f"\nwiki, {len(part)} {which} questions: " + ", ".join(f"{k} {v:.3f}" for k, v in measured.items()))
    for name, least in GOLDEN["thresholds"].items():
        assert measured[name] >= least, name


if __name__ == "__main__":
    everything = answers()
    for held_out in (False, True):
        part = [row for row in everything if row[0]["held_out"] == held_out]
        if part:
            print("held out" if held_out else "open", len(part), figures(part))
        for entry, recall, ndcg, found in part:
            if not held_out and (recall < 1 or ndcg < 0.8):
                print(f"  {entry['question']!r}: recall {recall:.2f}, ndcg {ndcg:.2f}")
                print(f"    wanted {', '.join(entry['relevant'])}\n    found  {', '.join(found)}")
