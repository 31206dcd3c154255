"""`atrex wiki` on the command line."""

import json

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError

runner = CliRunner()


def run(*arguments, status=0):
    result = runner.invoke(app, ["wiki", *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def test_spec_gives_one_value_with_its_document():
    assert "4.8 TB/s" in run("spec", "H200", "memory.bandwidth")
    value = json.loads(run("spec", "H200", "memory.bandwidth", "--json"))
    assert (value["value"], value["unit"], value["card"]) == (4.8e12, "B/s", "chip-h200")
    assert value["url"].startswith("https://") and value["date"]


def test_spec_of_a_chip_knows_its_architecture():
    assert json.loads(run("spec", "MI300X", "warp.size", "--json"))["value"] == 64
    assert json.loads(run("spec", "H200", "shared_memory.per_block", "--json"))["value"] == 227


def test_spec_knows_architectures_by_name():
    assert "wgmma" in run("spec", "Hopper") and "160 KiB of LDS" in run("spec", "gfx950")


@pytest.mark.parametrize(("arguments", "said"), [(["H201"], "did you mean H20"), (["H200", "memory"], "is any of")])
def test_spec_of_what_is_not_there(arguments, said):
    with pytest.raises(UserError, match=said):
        run("spec", *arguments)


def test_the_value_of_the_sheet_is_the_judge_s():
    from atrex.hardware.chip import load_chip

    for name in ("H200", "MI300X", "B200"):
        value = json.loads(run("spec", name, "peaks.matrix.bf16", "--json"))["value"]
        assert value == load_chip(name).peaks["matrix"]["bf16"]


def test_search_prints_cards_and_json():
    assert "playbook-rms-norm" in run("search", "rms_norm", "playbook")
    answer = json.loads(run("search", "rms_norm playbook on a H200", "--json"))
    assert answer["hits"][0]["id"] == "playbook-rms-norm" and answer["understood"]["arch"] == ["sm_90"]


def test_a_search_without_an_answer_ends_with_status_1():
    assert "no card says" in run("search", "zzyzx", status=1)


def test_show_has_sources_relations_and_verification():
    text = run("show", "playbook-rms-norm", "--related")
    assert "needs: coalesced-access" in text and "results/h200-triton-examples" in text and "## Sources" in text


def test_show_of_an_unknown_card_says_what_is_near():
    with pytest.raises(UserError, match="did you mean playbook-rms-norm"):
        run("show", "playbook-rmsnorm")


def test_the_code_of_a_kernel_is_a_candidate_to_start_from():
    assert "class Model(torch.nn.Module)" in run("show", "kernel-block-scaled-mm-gluon", "--code")
    with pytest.raises(UserError, match="expected a card of kind kernel"):
        run("show", "coalesced-access", "--code")


def test_check_counts_and_passes():
    counts = json.loads(run("check", "--json"))
    assert counts["wrong"] == 0 and counts["cards"] == sum(counts["by_kind"].values())
