"""Advice: the right symptom first, nothing about healthy kernels, and what cannot be judged is said."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.profiling.evidence import Ceiling, derived, read_evidence
from atrex.profiling.ncu import metrics
from atrex.wiki.advise import advise, rules
from atrex.wiki.expression import Unknown, evaluate
from atrex.wiki.load import load_wiki
from atrex.wiki.search import Filters, search
from tests.wiki.synthetic import KERNELS, evidence

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.json"))
EXPECTED = {
    "streaming": None,
    "tensor_core": None,
    "uncoalesced": "uncoalesced-loads",
    "spilling": "register-spill",
    "bank_conflicted": "bank-conflicts",
    "tiny": "launch-bound",
}


@pytest.mark.parametrize("name", list(KERNELS))
def test_synthetic_counters_lead_to_their_symptom(name):
    advice = advise(evidence(name))
    assert [s.id for s in advice.symptoms][:1] == ([EXPECTED[name]] if EXPECTED[name] else [])
    assert advice.healthy == (EXPECTED[name] is None)


@pytest.mark.skipif(not FIXTURES, reason="no measured fixtures: python benchmarks/wiki_fixtures.py on a GPU")
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_measured_counters_lead_to_their_symptom(path):
    measured = read_evidence(path)
    advice = advise(measured)
    assert not measured.synthetic and measured.tool == "ncu"
    assert [s.id for s in advice.symptoms][:1] == ([EXPECTED[path.stem]] if EXPECTED[path.stem] else [])
    assert advice.healthy == (EXPECTED[path.stem] is None)


def test_no_symptom_can_win_more_than_lies_above_the_roofline():
    for name in KERNELS:
        one = evidence(name)
        above = one.figures()["atrex.duration_us"] - one.ceiling.roofline_us
        assert all(symptom.recoverable_us <= above + 0.01 for symptom in advise(one).symptoms)


def test_symptoms_come_in_order_of_the_time_they_may_win():
    both = evidence("uncoalesced", **{"l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum": 2.0**31})
    won = [symptom.recoverable_us for symptom in advise(both).symptoms]
    assert len(won) >= 2 and won == sorted(won, reverse=True)


def test_a_rule_without_its_counters_is_unjudged_and_not_silent():
    advice = advise(evidence("spilling", without=("l1tex__t_bytes_pipe_lsu_mem_local",)))
    assert "register-spill" not in [s.id for s in advice.symptoms]
    assert advice.unjudged["register-spill"] == ["atrex.spill_share"]


def test_without_a_duration_nothing_is_called_healthy():
    advice = advise(evidence("streaming", without=("gpu__time_duration",)))
    assert not advice.healthy and "nothing can be judged" in advice.verdict


def test_memory_at_its_peak_with_needless_bytes_is_not_healthy():
    one = evidence("uncoalesced").model_copy(update={"ceiling": None})
    advice = advise(one)
    assert not advice.healthy and advice.symptoms[0].id == "uncoalesced-loads"


def test_a_kernel_that_no_rule_explains_is_not_called_healthy():
    slow = evidence("streaming", **{
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": 40.0, "gpu__time_duration.sum": 1e6,
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 5.0,
    })  # fmt: skip
    advice = advise(slow)
    assert not advice.healthy and advice.symptoms == [] and "none of the rules explains" in advice.verdict


def test_cards_of_the_wrong_architecture_are_not_advised():
    for name in ("uncoalesced", "spilling", "bank_conflicted"):
        for symptom in advise(evidence(name)).symptoms:
            for card in symptom.cards:
                assert search(card.replace("-", " "), Filters(arch="sm_90"), k=50).hits


def test_the_uncoalesced_kernel_is_sent_to_the_card_on_coalescing():
    assert "coalesced-access" in advise(evidence("uncoalesced")).symptoms[0].cards


def test_architectures_that_count_a_unit_under_another_name_are_judged_too():
    usual = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    other = {"sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": 74.0}
    assert advise(evidence("tensor_core", without=(usual,), **other)).healthy
    assert not advise(evidence("tensor_core", without=(usual,))).healthy


def test_a_host_that_is_slower_than_the_device_is_noted_for_healthy_kernels_too():
    one = evidence("streaming")
    one = one.model_copy(update={"host_us": 900.0, "kernels": [one.kernel]})
    advice = advise(one)
    assert advice.healthy and advice.symptoms == [] and "900 us, 1.9 times" in advice.notes[0]
    assert advise(one.model_copy(update={"host_us": 90.0})).notes == []


def test_every_counter_of_the_rules_and_cards_is_one_that_is_collected():
    ceiling = Ceiling(roofline_us=1, bound="memory", bytes_read=1, bytes_written=1, flops=1, card="chip-h200")
    known = set(metrics()) | set(derived(dict.fromkeys(metrics(), 1.0), ceiling))
    known |= {"atrex.host_us", "atrex.host_over_device"}
    assert {counter for counters in rules().names.values() for counter in counters} <= known
    of_cards = {symptom.counter for card in load_wiki() for symptom in card.symptoms if symptom.vendor != "amd"}
    assert of_cards <= known


def test_every_rule_names_known_counters_and_says_something():
    for rule in rules().rules:
        values = dict.fromkeys(rules().names, 1.0)
        assert 0 <= evaluate(rule["share"], values) <= 2
        assert rule["says"].format_map(values) and rule["look"]


def test_expressions_hold_arithmetic_alone():
    assert evaluate("min(a, 2) * (1 - b / 4) > 0.5 and a", {"a": 3, "b": 2})
    with pytest.raises(Unknown):
        evaluate("a + c", {"a": 1})
    for text in ("__import__('os')", "a.real", "[1]", "a if b else 1", "(lambda: 1)()", "2 ** 9"):
        with pytest.raises(ValueError):
            evaluate(text, {"a": 1, "b": 1})


def test_the_command_prints_symptom_time_and_cards(tmp_path):
    path = tmp_path / "evidence.json"
    path.write_text(evidence("uncoalesced").model_dump_json())
    result = CliRunner().invoke(app, ["wiki", "advise", str(path)], catch_exceptions=False)
    assert "4.0 of the 32 bytes" in result.output and "coalesced-access" in result.output
    result = CliRunner().invoke(app, ["wiki", "advise", str(path), "--json"], catch_exceptions=False)
    assert json.loads(result.output)["symptoms"][0]["recoverable_us"] > 100


@pytest.mark.parametrize(("text", "said"), [("{", "no JSON"), ('{"format": 1}', "Field required")])
def test_what_is_no_evidence_is_refused_with_the_field(tmp_path, text, said):
    path = tmp_path / "evidence.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        read_evidence(path)
