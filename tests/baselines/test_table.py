"""The table operator x baseline: which shapes it takes, and what a row says."""

from types import SimpleNamespace

from benchmarks.baselines import chosen_shapes, markdown, order, table

from atrex.evaluate.budgets import predicted_seconds
from atrex.problems.load import load_suite
from atrex.scoring.records import Performance, UnitRecord, Verdict

SUITE = load_suite()


def unit(operator, shape, us=None, **verdict):
    timed = us and Performance(median_us=us, p10_us=us, p90_us=us, ci_us=(us, us), n=20, method="events")
    return UnitRecord(
        candidate="c", candidate_sha256="0" * 64, operator=operator, shape=shape, device="cuda:0", chip="H200",
        dsl="none", verdict=Verdict(**(verdict or {"status": "passed"})), performance=timed,
    )  # fmt: skip


def runs(**records):
    return {name: SimpleNamespace(records=found) for name, found in records.items()}


def test_shapes_are_published_ones_of_rising_cost():
    problem = SUITE.problem("rms_norm")
    found = chosen_shapes(problem, 3, "cuda")
    cost = [predicted_seconds(problem.work(s)) for s in found]
    assert len(found) == 3 and cost == sorted(cost)
    assert all(problem.metadata.shapes[s.id].origin == "published" for s in found)


def test_more_shapes_than_there_are_is_all_of_them():
    problem = SUITE.problem("mla_decode_attention")
    published = [s for s in problem.shapes if problem.metadata.shapes[s].origin == "published"]
    assert sorted(s.id for s in chosen_shapes(problem, 100, "cuda")) == sorted(published)


def test_the_slow_compiler_comes_last():
    assert order(["torch.compile", "torch", "fla"]) == ["torch", "fla", "torch.compile"]


def test_a_row_is_a_unit_with_a_time_by_baseline():
    rows = table(
        runs(torch=[unit("rms_norm", "10", 4.0), unit("rms_norm", "9", 3.0)], fla=[unit("rms_norm", "9", 2.0)])
    )
    assert [(r["operator"], r["shape"], r["us"]) for r in rows] == [
        ("rms_norm", "9", {"torch": 3.0, "fla": 2.0}), ("rms_norm", "10", {"torch": 4.0})
    ]  # fmt: skip


def test_a_failure_is_named_and_an_absent_operator_is_a_dash():
    wrong = unit("l2_norm", "0", status="failed", stage="runtime", category="numeric_mismatch", reason="out is\n0.5")
    rows = table(runs(torch=[unit("l2_norm", "0", 4.0)], fla=[wrong]))
    assert rows[0]["failed"] == {"fla": {"verdict": "runtime: numeric_mismatch", "reason": "out is 0.5"}}
    shown = markdown({"baselines": {"torch": {}, "fla": {}, "liger": {}}, "rows": rows}).splitlines()
    assert shown[0] == "| operator | shape | torch | fla | liger |"
    assert shown[2] == "| `l2_norm` | 0 | 4.00 | numeric_mismatch | - |"
