"""A campaign as data: what its pages show follows from its files."""

import shutil

import pytest
from tests.optimize.lab import kernel
from tests.report.made import CARD, full_campaign, new_campaign

from atrex.errors import UserError
from atrex.optimize.model import Plan
from atrex.optimize.store import Campaign
from atrex.report.campaigns import LONGEST_DIFF, campaign_document

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    campaign = full_campaign(tmp_path_factory.mktemp("made") / "campaign")
    return campaign_document(campaign, {CARD: "Neighbours"}.get)


def test_every_attempt_is_told_with_its_outcome(document):
    outcomes = [row["outcome"] for row in document["iterations"]]
    assert outcomes == ["baseline", "promoted", "slower_shape", "failed", "duplicate", "promoted"]
    assert document["summary"]["outcomes"] == {"promoted": 2, "slower_shape": 1, "failed": 1, "duplicate": 1}


def test_the_incumbents_s_rises_only_where_a_kernel_was_accepted(document):
    assert [row["incumbent_S"] for row in document["iterations"]] == pytest.approx([0.1, 0.13, 0.13, 0.13, 0.13, 0.16])


def test_the_gain_is_the_product_of_the_promotions(document):
    first, last = (document["iterations"][n]["ratio"] for n in (1, 5))
    assert document["summary"]["ratio"] == pytest.approx(first * last)


def test_a_prediction_stands_beside_its_measurement(document):
    row = document["iterations"][1]
    assert row["predicted"] == 1.2
    assert row["low"] < 1.3 < row["high"]


def test_a_diff_is_against_the_kernel_that_the_attempt_set_out_from(document):
    lines = document["iterations"][5]["diff"].splitlines()
    assert "--- iteration 1" in lines
    assert "-# speed=1.3" in lines and "+# speed=1.6" in lines


def test_the_baselines_diff_is_its_source(document):
    assert document["iterations"][0]["diff"].startswith("# speed=1.0")


def test_a_very_long_source_has_no_diff(tmp_path):
    supervisor, campaign = new_campaign(tmp_path / "campaign")
    supervisor.advance()
    supervisor.submit(kernel() + "# more\n" * LONGEST_DIFF)
    assert campaign_document(campaign)["iterations"][0]["diff"] is None


def test_masks_say_which_records_a_session_does_not_see(document):
    (mask,) = document["masks"]
    hidden = [row["number"] for row in document["iterations"] if row["hidden_from"] == [mask["session"]]]
    assert mask["after"] == 3 and hidden == mask["hidden"] != []


def test_cards_are_counted_where_they_were_opened_and_where_plans_stand_on_them(document):
    card = next(card for card in document["cards"] if card["id"] == CARD)
    assert card["title"] == "Neighbours"
    assert card["cited"] == [1, 2, 3, 4, 5] and card["accepted"] == [1, 5]
    assert any(other["opened"] == [1, 2, 3, 4, 5] and not other["cited"] for other in document["cards"])


def test_spend_is_summed_over_sessions_with_their_transcripts(document):
    spend = document["spend"]
    assert (spend["tokens"], spend["usd"]) == (13900, pytest.approx(0.43))
    assert [s["transcript"] for s in spend["sessions"]][1] == "transcripts/0001-plan-0.jsonl"


def test_every_record_that_is_named_is_a_file(document, tmp_path):
    campaign = full_campaign(tmp_path / "campaign")
    for row in document["iterations"]:
        assert all((campaign.path / record).is_file() for record in row["records"]) and len(row["records"]) >= 4


def test_what_is_under_way_is_told_apart(tmp_path):
    supervisor, campaign = new_campaign(tmp_path / "campaign")
    assert campaign_document(campaign)["position"]["waits_for"] == "a first kernel (submit)"
    supervisor.advance()
    supervisor.submit(kernel())
    supervisor.advance()
    (begun,) = campaign_document(campaign)["open"]
    assert begun["number"] == 1 and begun["evidence"]["bottleneck"] and begun["plan"] is None


def test_attempts_of_one_iteration_share_its_evidence(tmp_path):
    supervisor, campaign = new_campaign(tmp_path / "campaign", width=2)
    supervisor.advance()
    supervisor.submit(kernel(artifact="base"))
    supervisor.advance()
    fields = {"bottleneck": "memory bandwidth", "cards": [CARD], "gain": 1.2}
    supervisor.plan(
        Plan(category="tiling", change="larger tiles of the rows", **fields),
        Plan(category="layout", change="pad the rows by a vector", **fields),
    )
    supervisor.submit_all(kernel(1.2), kernel(1.5))
    document = campaign_document(campaign)
    _, first, second = document["iterations"]
    assert (first["iteration"], second["iteration"]) == (1, 1)
    assert (first["outcome"], second["outcome"]) == ("not_selected", "promoted")
    assert first["evidence"] == second["evidence"] is not None
    assert (document["summary"]["iterations"], document["summary"]["attempts"]) == (1, 2)


def test_a_damaged_campaign_is_one_line(tmp_path):
    campaign = full_campaign(tmp_path / "campaign")
    (campaign.path / "spend.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="spend.jsonl: expected one JSON object a line"):
        campaign_document(Campaign(campaign.path))
