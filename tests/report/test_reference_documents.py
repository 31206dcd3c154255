"""Chips and cards as data: every ceiling has its source, and a search finds what `atrex wiki search` would."""

import re

import pytest

from atrex.report.cards import card_document, listing, markdown, search_index, words
from atrex.report.chips import chip_documents
from atrex.wiki.load import load_wiki


@pytest.fixture(scope="module")
def wiki():
    return load_wiki()


def test_every_figure_of_a_chip_has_a_source_and_a_date():
    documents = chip_documents()
    assert {"H200", "MI300X", "sm_90"} <= {each["name"] for each in documents}
    for each in documents:
        for value in each["values"]:
            assert value["source"] and value["where"] and re.fullmatch(r"\d{4}-\d\d-\d\d", value["date"])


def test_a_chips_ceilings_are_those_of_the_judge():
    from atrex.hardware.chip import load_chip

    h200 = next(each for each in chip_documents() if each["name"] == "H200")
    assert h200["bandwidth"] == load_chip("H200").memory_bandwidth
    assert h200["peaks"]["matrix.bf16"] == load_chip("H200").peaks["matrix"]["bf16"]


def test_every_card_is_listed_once(wiki):
    assert sorted(row["id"] for row in listing(wiki)) == sorted(wiki.cards)


@pytest.mark.parametrize(
    ("asked", "card"),
    [
        ("split-kv paged attention", "playbook-paged-attention-decode"),
        ("rmsnorm", "playbook-rms-norm"),
        ("MemUnitStalled", "async-copy-to-lds"),
    ],
)
def test_a_search_finds_the_card_among_the_best(wiki, asked, card):
    index = search_index(wiki)
    found: dict[int, tuple[int, int]] = {}
    for word in words(asked):
        postings = index["terms"].get(word, [])
        for number, weight in zip(postings[::2], postings[1::2], strict=True):
            hits, total = found.get(number, (0, 0))
            found[number] = (hits + 1, total + weight)
    best = [index["ids"][n] for n in sorted(found, key=found.get, reverse=True)]
    assert card in best[:5]


def test_markdown_keeps_html_as_text():
    made = markdown("a <script>alert(1)</script>\n\n<img src=x onerror=alert(1)>\n")
    assert "<script" not in made and "<img" not in made and "&lt;script&gt;" in made


@pytest.mark.parametrize("target", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "//evil.example"])
def test_a_link_leads_nowhere_but_to_the_web_and_the_page(target):
    assert "<a" not in markdown(f"[here]({target})")


def test_citations_lead_to_the_sources_that_there_are():
    made = markdown("as measured [1], not [7]; `x[1]` is code", sources=2)
    assert made.count('href="#source-1"') == 1 and "[7]" in made and "source-7" not in made


def test_a_card_tells_its_relations_either_way(wiki):
    about = card_document(wiki, wiki.card("async-copy-to-lds"))
    told = {(each["name"], each["id"]) for each in about["related"]}
    assert ("specializes", "software-pipelining") in told
    other = card_document(wiki, wiki.card("software-pipelining"))
    assert ("generalizes", "async-copy-to-lds") in {(each["name"], each["id"]) for each in other["related"]}
    assert "<h3>What to look for</h3>" in about["html"]
