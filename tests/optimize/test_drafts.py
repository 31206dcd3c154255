"""Drafts of cards from a campaign: what was measured is in them, what nobody measured is left to a reviewer."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.optimize.drafts import draft_campaign
from atrex.wiki.check import check_card
from atrex.wiki.drafts import check_drafts
from atrex.wiki.load import CARDS, load_wiki, read_card
from tests.optimize.conftest import PLAN
from tests.optimize.lab import kernel
from tests.optimize.test_machine import step

AFTER = kernel(1.3) + "\ndef forward():\n    return 1\n"


@pytest.fixture
def campaign(begin):
    """A gain, and a try of the same category that brought none."""
    supervisor, campaign = begin(chip="H200", dsl="triton")
    supervisor.submit(kernel())
    step(supervisor, AFTER, PLAN.model_copy(update={"risks": "spills [7] on | small rows"}))
    step(supervisor, kernel(0.9), PLAN.model_copy(update={"change": "loads of 32 bytes a lane"}))
    return campaign


@pytest.fixture
def draft(campaign, tmp_path):
    [written] = draft_campaign(campaign, tmp_path / "drafts")
    return read_card(written.path)


def run(*words):
    return CliRunner().invoke(app, ["wiki", *map(str, words)], catch_exceptions=False)


def test_a_confirmed_gain_becomes_a_draft_with_what_the_campaign_knew(campaign, draft):
    v = campaign.memory[1].validation
    assert (draft.kind, draft.vendor, draft.arch, draft.dsl) == ("pattern", "nvidia", ("sm_90",), ("triton",))
    assert draft.operators == ("rms_norm",) and dict(draft.relations) == {"specializes": ("coalesced-access",)}
    assert "Wider loads of both operands" in draft.title and f"{v.ratio:.2f} times as fast on H200" in draft.title
    brings = draft.sections["What it should bring"]
    assert "Predicted 1.200 times" in brings and f"measured {v.ratio:.3f} times ({v.low:.3f} to {v.high:.3f}" in brings
    assert "memory bandwidth" in draft.statement.claim and "+def forward():" in draft.body
    assert "`forward`" in draft.sections["What to change"]
    assert "loads of 32 bytes a lane" in draft.sections["When not to"]
    assert [source.where for source in draft.sources] == [
        "results/campaigns/campaign/memory/0001.json", "results/campaigns/campaign/measurements/0001-contest.json",
        "results/campaigns/campaign/iterations/0001/evidence.json", "results/campaigns/campaign/memory",
        "results/campaigns/campaign/iterations/0002/evidence.json",
    ]  # fmt: skip


def test_all_that_is_wrong_with_a_draft_is_what_it_leaves_to_a_person(draft):
    assert {finding.field for finding in check_card(draft)} == {"review"}


def test_sources_that_are_not_in_the_project_yet_are_named(draft, tmp_path):
    (tmp_path / "results").mkdir()
    said = [str(finding) for finding in check_card(draft, tmp_path)]
    assert any("results/campaigns/campaign/memory/0001.json" in each and "no such file" in each for each in said)


def test_what_brought_no_gain_is_no_draft(begin, tmp_path):
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    step(supervisor, kernel(0.9))
    assert draft_campaign(campaign, tmp_path / "drafts") == []


def test_a_draft_that_somebody_works_on_stays(campaign, tmp_path):
    [first] = draft_campaign(campaign, tmp_path / "drafts")
    text = first.path.read_text() + "\nA reviewer's word.\n"
    first.path.write_text(text)
    [again] = draft_campaign(campaign, tmp_path / "drafts")
    assert not again.new and first.path.read_text() == text


def test_drafts_do_not_go_among_the_cards(campaign):
    with pytest.raises(UserError, match="drafts stay apart"):
        draft_campaign(campaign, CARDS)


def test_search_does_not_show_a_draft_and_check_lists_what_is_left(campaign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run("drafts", campaign.path)
    assert made.exit_code == 0 and "1 confirmed gains, 1 new drafts" in made.output
    [path] = (tmp_path / "wiki-drafts").glob("*/*.md")
    assert path.stem not in run("search", "wider loads of both operands rms_norm triton", "-k", "50").output
    about = json.loads(run("check", "--json").output)
    assert about["drafts"] == 1 and about["wrong"] == 0
    assert {each["field"] for each in about["left"] if each["card"] == path.stem} >= {"review"}
    assert path.stem in run("drafts").output


def test_a_reviewed_draft_is_a_card_once_it_lies_among_them(draft, campaign, tmp_path):
    folder = tmp_path / "drafts"
    [path] = folder.glob("*/*.md")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("REVIEW:")]
    text = "\n".join(lines).replace("## What to change", "Each narrow load holds a slot.\n\n## What to change", 1)
    path.write_text(text.replace("## When not to", "## When not to\n\nGathers of single elements.", 1) + "\n")
    assert check_drafts(folder, load_wiki())[1] == []


def test_a_draft_related_to_no_card_or_with_a_cards_id_is_named(draft, tmp_path):
    [path] = (tmp_path / "drafts").glob("*/*.md")
    path.write_text(path.read_text().replace("coalesced-access", "coalesced-acces"))
    wiki = load_wiki()
    assert any("no card 'coalesced-acces'" in str(each) for each in check_drafts(tmp_path / "drafts", wiki)[1])
