"""Search as its users meet it: the right card first, scope seen in free text, and why nothing came."""

import time

import pytest

from atrex.errors import UserError
from atrex.wiki.query import understand
from atrex.wiki.search import Filters, search
from atrex.wiki.vocabulary import DATA, read_yaml, vocabulary

CARD = """---
id: {id}
kind: pattern
title: {title}
vendor: {vendor}
arch: [{arch}]
dsl: [{dsl}]
operators: [{operators}]
{more}---

{body}
"""


@pytest.fixture
def cards(tmp_path, monkeypatch):
    monkeypatch.setenv("ATREX_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "cards"
    (folder / "pattern").mkdir(parents=True)

    def add(card_id, title, body, vendor="any", arch="any", dsl="any", operators="any", more=""):
        text = CARD.format(
            id=card_id, title=title, vendor=vendor, arch=arch, dsl=dsl, operators=operators, more=more, body=body
        )
        (folder / "pattern" / f"{card_id}.md").write_text(text)

    add("lds-banks", "Pad rows against bank conflicts", "Shared memory has banks.", "amd", "gfx942")
    add("smem-swizzle", "Swizzle tiles in shared memory", "Bank conflicts go away.", "nvidia", "sm_90", "triton")
    add("norm-rows", "Rows in registers", "One pass for RMSNorm.", operators="rms_norm")
    add("moe-sort", "Sort slots by expert", "Counting before sorting. A warp per expert.", operators="moe")
    add("pipelines", "Software pipelining of loops", "num_stages copies ahead.", dsl="triton")
    add("graphs", "Replay graphs", "CUDA graphs hide launch latency.")
    return folder


def found(question, cards, **filters):
    return [hit.id for hit in search(question, Filters(**filters), cards=cards).hits]


def test_the_card_that_says_it_comes_first(cards):
    assert found("replay graphs", cards)[0] == "graphs"


def test_another_name_for_it_finds_the_card(cards):
    assert found("lds conflict", cards)[0] == "lds-banks"
    assert found("multistage loop", cards)[0] == "pipelines"
    assert found("root mean square norm", cards)[0] == "norm-rows"


def test_joined_and_spaced_spellings_meet(cards):
    assert found("rms_norm", cards)[0] == found("rmsnorm", cards)[0] == found("rms norm", cards)[0] == "norm-rows"


def test_word_endings_do_not_matter(cards):
    assert found("sorted expert slot", cards)[0] == "moe-sort"


def test_a_chip_in_the_question_decides_between_vendors(cards):
    assert found("bank conflicts shared memory on MI300X", cards)[0] == "lds-banks"
    assert found("bank conflicts shared memory hopper", cards)[0] == "smem-swizzle"


def test_a_language_in_the_question_is_seen():
    assert understand("triton kernel on an H200").dsl == {"triton"}
    assert understand("triton kernel on an H200").arch == {"sm_90"}
    assert understand("cute dsl gemm").dsl == {"cutedsl"}


def test_an_operator_is_seen_under_its_other_names():
    assert "mla_decode_attention" in understand("flashmla decode").operators
    assert "chunk_gated_delta_rule_state" in understand("chunk gated delta").operators


def test_a_group_of_operators_answers_for_its_members(cards):
    assert "moe-sort" in found("sort experts", cards, operator="moe_count_and_sort")


def test_an_empty_answer_says_which_filter_emptied_it(cards):
    answer = search("bank conflicts", Filters(arch="gfx942", dsl="cutedsl", kind="pitfall"), cards=cards)
    assert answer.hits == []
    assert "--kind pitfall leaves none" in answer.why and "lds-banks" in answer.why


def test_a_word_that_no_card_has_is_named(cards):
    answer = search("zzyzx", cards=cards)
    assert answer.hits == [] and answer.why == "no card says 'zzyzx'"


def test_a_misspelt_word_is_taken_for_the_one_that_was_meant(cards):
    assert found("swizle tiles", cards)[0] == found("swizzel", cards)[0] == "smem-swizzle"


def test_a_name_with_joints_is_one_name(cards):
    assert understand("tl.multiple_of and num_warps").concepts[0].asked == "tl multiple of"
    assert [concept.asked for concept in understand("fp8-rmsnorm").concepts] == ["fp8", "rmsnorm"]


def test_cards_of_another_architecture_are_filtered(cards):
    assert "smem-swizzle" not in found("bank conflicts", cards, arch="gfx942")


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"arch": "sm_91"}, "--arch sm_91: unknown, did you mean sm_90"),
        ({"kind": "patterns"}, "--kind patterns: unknown, did you mean pattern"),
        ({"operator": "rmsnorm"}, "--operator rmsnorm: unknown, did you mean rms_norm"),
        ({"dsl": "tritn"}, "did you mean triton"),
    ],
)
def test_unknown_filters_are_refused(cards, filters, said):
    with pytest.raises(UserError, match=said):
        search("anything", Filters(**filters), cards=cards)


def test_a_question_without_content_is_refused(cards):
    with pytest.raises(UserError, match="nothing to search for"):
        search("how do I the", cards=cards)


def test_a_question_of_odd_characters_is_no_syntax_error(cards):
    assert found('swizzle" OR NEAR( * ^ {x} -- :', cards)[0] == "smem-swizzle"


def test_the_same_question_gets_the_same_answer(cards):
    first = search("shared memory bank conflicts", cards=cards).as_dict()
    assert first == search("shared memory bank conflicts", cards=cards).as_dict()


def test_a_changed_card_is_found_without_being_told(cards, tmp_path):
    assert "graphs" not in found("persistent", cards)
    path = cards / "pattern" / "graphs.md"
    path.write_text(path.read_text().replace("hide launch latency", "need no persistent kernels"))
    assert "graphs" in found("persistent", cards)


def test_a_verified_card_comes_before_an_equal_one(cards):
    body = "Tile the epilogue of the product."
    text = "verified: [{level: measured, record: results/x.json, chip: H200, date: 2026-01-02}]\n"
    for name, more in (("epilogue-a", ""), ("epilogue-b", text)):
        path = cards / "pattern" / f"{name}.md"
        path.write_text(
            CARD.format(id=name, title="Tiled epilogues", vendor="any", arch="any", dsl="any", operators="any",
                        more=more, body=body)
        )  # fmt: skip
    assert found("tiled epilogue", cards)[:2] == ["epilogue-b", "epilogue-a"]


def test_searching_works_without_a_cache_to_write_to(cards, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ATREX_CACHE_DIR", str(blocked / "cache"))
    assert found("replay graphs", cards)[0] == "graphs"


def test_a_shipped_search_takes_less_than_a_tenth_of_a_second():
    question = "paged attention decode split-kv hopper shared memory bank conflict triton persistent"
    search(question)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        search(question)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.1


def test_every_name_of_an_operator_finds_its_playbook():
    groups = read_yaml((DATA / "synonyms.yaml").read_text())["same"]
    names = {group[0]: group for group in groups if group[0] in vocabulary().operators}
    assert set(names) == set(vocabulary().operators)
    lost = [
        name
        for operator, group in names.items()
        for name in group
        if f"playbook-{operator.replace('_', '-')}" not in [hit.id for hit in search(str(name), k=3).hits]
    ]
    assert lost == []


def test_an_operator_put_together_from_several_words_is_seen():
    assert "fused_rmsnorm_quant" in understand("fp8 quantization fused into rmsnorm").operators
    assert "fused_moe" not in understand("router of a moe layer").operators


def test_a_conversion_is_found_in_the_direction_that_was_asked():
    assert search("convert triton to cute dsl").hits[0].id == "triton-to-cutedsl"
    assert search("port a cute dsl kernel to triton").hits[0].id == "cutedsl-to-triton"


def test_a_pasted_page_is_answered_in_time(cards):
    page = "shared memory bank conflicts " + " ".join(f"line{i} of_a_log.txt" for i in range(5000))
    start = time.process_time()
    assert found(page, cards)[0] in ("lds-banks", "smem-swizzle")
    assert time.process_time() - start < 1
