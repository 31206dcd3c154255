"""What `atrex wiki check` refuses, each on a card that is right but for one thing."""

import pytest

from atrex.errors import UserError
from atrex.wiki.check import check_cards, checkout
from atrex.wiki.load import parse_card

GOOD = """---
id: wide-loads
kind: pattern
title: Sixteen bytes a lane
vendor: nvidia
arch: [sm_90]
operators: [rms_norm]
symptoms:
  - {counter: dram__bytes_read.sum, min: 1}
statement: {claim: Wide loads need fewer instructions., test: "`smsp__inst_executed.sum` falls"}
sources:
  - {title: A page, where: "https://example.org/page", date: 2026-01-02}
---

## What to look for

Narrow loads, as the source says [1]. FILL

## Why it happens

Every load holds a slot.

## What to change

Use vectors.

## What it should bring

Fewer instructions.

## When not to

Gathers of single elements.
"""


def good(card_id="wide-loads", title="Sixteen bytes a lane", salt="w"):
    words = " ".join(f"{salt}{i}" for i in range(160))
    return GOOD.replace("FILL", words).replace("wide-loads", card_id).replace("Sixteen bytes a lane", title)


def findings(tmp_path, *texts):
    for i, text in enumerate(texts):
        folder = tmp_path / "pattern"
        folder.mkdir(exist_ok=True)
        name = text.partition("id: ")[2].partition("\n")[0] or f"card{i}"
        (folder / f"{name}.md").write_text(text)
    return [str(finding) for finding in check_cards(tmp_path, None)[1] if not finding.note]


def test_the_shipped_cards_pass():
    _, found = check_cards(root=checkout())
    assert [str(finding) for finding in found if not finding.note] == []


def test_a_good_card_has_no_findings(tmp_path):
    assert findings(tmp_path, good()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: pattern", "kind: patern", "schema: kind"),
        ("vendor: nvidia", "vendro: nvidia", "schema: vendro"),
        ("arch: [sm_90]", "arch: [sm_91]", "arch: unknown 'sm_91'"),
        ("arch: [sm_90]", "arch: [gfx942]", "arch: gfx942 is not nvidia's"),
        ("operators: [rms_norm]", "operators: [rmsnorm]", "did you mean rms_norm"),
        ("dram__bytes_read.sum", "SQ_LDS_BANK_CONFLICT", "is no counter of nvidia"),
        ("dram__bytes_read.sum, min: 1", "dram__bytes_read.sum", "give min, max or both"),
        ("dram__bytes_read.sum", "bytes read", "no metric of ncu"),
        ("statement: {claim: Wide loads need fewer instructions., test: \"`smsp__inst_executed.sum` falls\"}\n", "",
         "a pattern needs claim and test"),
        ('test: "`smsp__inst_executed.sum` falls"', "test: it is faster", "names nothing to observe"),
        ("https://example.org/page", "a page I saw", "no such file in the project"),
        ("https://example.org/page", "/etc/passwd", "expected an http(s) address"),
        ("https://example.org/page", "file:///etc/passwd", "expected an http(s) address"),
        ("2026-01-02", "2999-01-02", "yet to come"),
        ("as the source says [1]", "as the source says [2]", "[2] is cited, but there are 1 sources"),
        ("as the source says [1]", "as somebody says", "sources.1: cited nowhere"),
        ("Use vectors.", "Use vectors, 30 % faster.", "'30 %' has no source"),
        ("Use vectors.", "Reaches 4.1 TB/s.", "'4.1 TB/s' has no source"),
        ("Every load holds a slot.", "", "section '## Why it happens' is missing or empty"),
        ("w159", "w159 " + "more " * 300, "expected at most 400"),
        ("w1 ", "", "words, expected at least 150"),
        ("sources:", "relations: {fixes: [narrow-loads]}\nsources:", "no card 'narrow-loads'"),
        ("sources:", "relations: {fixes: [wide-loads]}\nsources:", "the card itself"),
    ],
)  # fmt: skip
def test_one_thing_wrong_is_named(tmp_path, old, new, said):
    text = good()
    if said.endswith("least 150"):
        text = text.replace(text[text.index("w1 ") : text.index("w100")], "")
    assert old in text or said.endswith("least 150")
    (tmp_path / "pattern").mkdir()
    (tmp_path / "pattern" / "wide-loads.md").write_text(text.replace(old, new))
    found = [str(finding) for finding in check_cards(tmp_path, tmp_path)[1] if not finding.note]
    assert any(said in line for line in found), found


def test_figures_may_be_arithmetic_rules_of_thumb_or_code(tmp_path):
    text = good().replace("Use vectors.", "Half is 50 % [calc], try 20 % [rule]; `x = 10 %` and 128 threads need none.")
    assert findings(tmp_path, text) == []


def test_indices_in_code_are_no_citations(tmp_path):
    text = good().replace("Use vectors.", "Tile by `[8, 16]`.\n\n```python\nx = tile[7]\n```\n")
    assert findings(tmp_path, text) == []


def test_copied_cards_are_near_duplicates(tmp_path):
    found = findings(tmp_path, good(), good("broad-loads", "Broad loads in kernels"))
    assert any("nearly" in line and "are the same" in line for line in found)


def test_cards_on_two_things_are_no_duplicates(tmp_path):
    other = good("narrow-stores", "Stores that are too narrow", salt="v").replace(
        "Wide loads need", "Narrow stores ask"
    )
    assert findings(tmp_path, good(), other) == []


def test_a_pitfall_needs_mechanism_and_evidence():
    with pytest.raises(UserError, match="a pitfall has mechanism and evidence"):
        parse_card(good().replace("kind: pattern", "kind: pitfall"), "card.md")


def test_a_file_under_another_name_is_refused(tmp_path):
    (tmp_path / "pattern").mkdir()
    (tmp_path / "pattern" / "other.md").write_text(good())
    assert "expected the file's name" in str(check_cards(tmp_path)[1][0])


def test_bad_yaml_is_one_line_with_its_place():
    with pytest.raises(UserError, match=r"card.md:4: not valid YAML"):
        parse_card("---\nid: x\nkind: [\n---\n", "card.md")
