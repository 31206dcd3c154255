"""Tables of `atrex report` over synthetic runs whose figures are known by hand."""

import math
from itertools import combinations

import pytest
from studies import about, generated, judged, suite_document, write_generation
from synthetic import error, failed, unit

from atrex.errors import UserError
from atrex.report.study.document import study
from atrex.report.study.pair import pair_table, read_pair
from atrex.report.study.samples import pass_at_k
from atrex.report.study.sets import find_sets

# Two operators in each regime and one without arithmetic, of a suite of their own.
WEIGHTS = {"rms_norm": 0.4, "l2_norm": 0.1, "fused_moe": 0.2, "block_scaled_mm": 0.2, "topk_filter": 0.1}
SMALL = suite_document(WEIGHTS, dict.fromkeys(WEIGHTS, 2))


def operator(name, *scores, share=None, **fields):
    """Units of one operator; a score of None is a wrong unit."""
    return [
        failed("runtime", "numeric_mismatch", name, str(i), **fields) if s is None
        else unit(name, str(i), s, share=share, **fields)
        for i, s in enumerate(scores)
    ]  # fmt: skip


def made(*paths):
    (group,) = study(find_sets(list(paths))).groups
    return {t.name: t for t in group.tables}


def rows(table, key):
    return {row[key]: row for row in table.rows}


@pytest.fixture
def two(tmp_path):
    """Set a solves everything but fused_moe; set b half of rms_norm and all of l2_norm, by PyTorch."""
    a = [
        *operator("rms_norm", 0.4, 0.6, share=0.9), *operator("l2_norm", 0.2, 0.2, share=0.8),
        *operator("fused_moe", None, None), *operator("block_scaled_mm", 0.1, 0.3, share=0.6),
        *operator("topk_filter", 0.7, 0.7, share=0.2),
    ]  # fmt: skip
    fallback = {"status": "passed", "shortcut": "torch"}
    b = [
        *operator("rms_norm", 0.2, None, share=0.9), *operator("l2_norm", 0.1, 0.3, share=0.0, verdict=fallback),
        *operator("fused_moe", None, None), *operator("block_scaled_mm", None, None),
        *operator("topk_filter", None, None),
    ]  # fmt: skip
    for name, units in (("a", a), ("b", b)):
        judged(tmp_path / name, {name: units}, **{k: v for k, v in SMALL.items() if k != "suite"})
    return made(tmp_path)


def test_main_figures(two):
    found = rows(two["main"], "set")
    assert found["a"]["correctness"] == pytest.approx(4 / 5) and found["b"]["correctness"] == pytest.approx(1.5 / 5)
    assert found["a"]["s_agg"] == pytest.approx(0.4 * 0.5 + 0.1 * 0.2 + 0.2 * 0.2 + 0.1 * 0.7)
    assert found["b"]["s_agg"] == pytest.approx(0.4 * 0.2 + 0.1 * 0.2)


def test_correctness_carried_by_fallbacks_is_told_from_dsl_kernels(two):
    found = rows(two["illusion"], "set")
    a, b = ({k: found[name][k] for k in ("fully_correct", "dominant", "gap", "both", "correct_not_dominant")}
            for name in ("a", "b"))  # fmt: skip
    assert a == {"fully_correct": 4, "dominant": 3, "gap": 1, "both": 3, "correct_not_dominant": 1}
    assert b == {"fully_correct": 1, "dominant": 1, "gap": 0, "both": 0, "correct_not_dominant": 1}
    assert found["b"]["shortcut_torch"] == 2


def test_difficulty_is_the_mean_pass_rate_over_systems_hardest_first(two):
    found = rows(two["difficulty"], "operator")
    assert {name: row["pass_rate"] for name, row in found.items()} == {
        "fused_moe": 0.0, "block_scaled_mm": 0.5, "topk_filter": 0.5, "rms_norm": 0.75, "l2_norm": 1.0,
    }  # fmt: skip
    assert list(found) == ["fused_moe", "block_scaled_mm", "topk_filter", "rms_norm", "l2_norm"]
    assert {name: row["solved_by"] for name, row in found.items() if row["solved_by"] == 2} == {"l2_norm": 2}
    assert found["rms_norm"]["s_a"] == 0.5 and found["fused_moe"]["s_b"] == 0.0
    assert found["rms_norm"]["weight"] == 0.4 and found["rms_norm"]["shapes"] == 2
    assert "1 solved by all (every judged shape correct), 1 by none" in two["difficulty"].notes[0]


def test_difficulty_knows_regime_and_intensity(two):
    found = rows(two["difficulty"], "operator")
    assert [found[name]["regime"] for name in ("rms_norm", "fused_moe", "topk_filter")] == [
        "memory",
        "compute",
        "index",
    ]
    assert found["rms_norm"]["intensity"] == pytest.approx(0.75, abs=0.01) and found["topk_filter"]["intensity"] is None


def test_regimes_count_what_nothing_solved_as_zero(two):
    found = rows(two["regimes"], "set")
    assert found["a"]["memory_s"] == pytest.approx((0.5 + 0.2) / 2)
    assert found["a"]["compute_s"] == pytest.approx((0.0 + 0.2) / 2)
    assert found["b"]["compute_s"] == 0.0
    assert (found["a"]["memory_operators"], found["a"]["compute_operators"], found["a"]["without_arithmetic"]) == (
        2,
        2,
        1,
    )


def test_failures_stand_by_set_and_sum_to_all(two):
    (row,) = [r for r in two["failures"].rows if r["category"] == "numeric mismatch"]
    assert (row["units_a"], row["units_b"], row["units"], row["share"]) == (2, 7, 9, 1.0)


def test_an_operator_that_a_set_was_not_run_on_is_not_held_against_it(tmp_path):
    judged(tmp_path / "a", {"a": operator("mla_decode_attention", 0.1, 0.1, 0.1)})
    judged(tmp_path / "b", {"b": operator("layer_norm", *[None] * 13)})
    found = rows(made(tmp_path)["difficulty"], "operator")["mla_decode_attention"]
    assert (found["pass_rate"], found["systems"], found["s_b"]) == (1.0, 1, None)


def sampled(tmp_path, *samples, **generation):
    """A system judged on one operator in several samples, which ended with these scores."""
    operators = [g for k in range(len(samples)) for g in [generated("mla_decode_attention", k, **generation)]]
    folder = write_generation(tmp_path / "made", operators, about(samples=len(samples)))
    folders = {f"{folder}/sample-{k}": operator("mla_decode_attention", *s) for k, s in enumerate(samples)}
    return made(judged(tmp_path / "run", folders))


def test_samples_are_rows_of_one_system(tmp_path):
    found = sampled(tmp_path, (0.1, 0.1, 0.1), (None, None, None))
    assert [row["set"] for row in found["main"].rows] == ["claude m1 #0", "claude m1 #1"]
    (row,) = found["difficulty"].rows
    assert (row["pass_rate"], row["systems"], row["solved_by"]) == (0.5, 1, 0)


def test_pass_at_k_over_samples(tmp_path):
    found = sampled(tmp_path, (0.1, 0.1, 0.1), (0.1, None, None), (None, None, None))
    by_k = rows(found["pass_at_k"], "k")
    assert [by_k[k]["operators"] for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert by_k[1]["units"] == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 0, 2), (5, 1, 3), (6, 2, 2), (4, 4, 1), (5, 4, 2)])
def test_pass_at_k_is_the_share_of_draws_with_a_correct_one(n, c, k):
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_intervals_over_samples_are_students(tmp_path):
    found = sampled(tmp_path, (0.2,) * 3, (0.4,) * 3, (0.6,) * 3)
    row = rows(found["intervals"], "figure")["S"]
    half = 4.302652729911275 * 0.2 / math.sqrt(3)  # t quantile 0.975 at 2 degrees of freedom
    assert row["mean"] == pytest.approx(0.4)
    assert (row["low"], row["high"]) == (0.0, pytest.approx(0.4 + half))


def test_one_sample_has_no_interval_and_no_pass_at_k(tmp_path):
    found = sampled(tmp_path, (0.1, 0.1, 0.1))
    assert found["intervals"].rows == found["pass_at_k"].rows == []
    assert found["main"].rows[0]["set"] == "claude m1"


def test_tokens_per_correct_operator(tmp_path):
    (row,) = sampled(tmp_path, (0.1, 0.1, 0.1), output=4200)["tokens"].rows
    assert (row["output_tokens"], row["fully_correct"], row["tokens_per_correct"], row["cost_usd"]) == (
        4200,
        1,
        4200,
        0.5,
    )


@pytest.mark.parametrize(("scores", "output"), [((0.1, 0.1, 0.1), None), ((0.1, 0.1, None), 4200)])
def test_tokens_per_correct_operator_is_none_where_it_is_not_defined(tmp_path, scores, output):
    (row,) = sampled(tmp_path, scores, output=output)["tokens"].rows
    assert row["tokens_per_correct"] is None and row["output_tokens"] == output


def test_tokens_told_for_a_part_of_the_problems_give_no_ratio(tmp_path):
    folder = write_generation(
        tmp_path / "made", [generated("mla_decode_attention", output=500), generated("layer_norm", output=None)]
    )
    units = [*operator("mla_decode_attention", 0.1, 0.1, 0.1), *operator("layer_norm", *[0.1] * 13)]
    (row,) = made(judged(tmp_path / "run", {f"{folder}/sample-0": units}))["tokens"].rows
    assert (row["output_tokens"], row["told"], row["problems"], row["tokens_per_correct"]) == (500, 1, 2, None)


def timed(us, **fields):
    times = {"median_us": us, "p10_us": us, "p90_us": us, "ci_us": (us, us), "n": 9, "method": "events"}
    return {"performance": times, "baselines": {"production": 95.0}, **fields}


def pair(tmp_path, vanilla, aka, **run):
    paths = judged(tmp_path / "vanilla", {"v": vanilla}), judged(tmp_path / "aka", {"a": aka}, **run)
    one, other, _ = read_pair(*paths, (), None)
    return pair_table(one, other)


def test_a_pair_reads_share_s_and_ratio_before_and_after(tmp_path):
    """The recurrence of the paper's Table 8: a fallback of 2.8 ms becomes a kernel of 79 us, production takes 95 us."""
    name = "chunk_gated_delta_rule_state"
    (row,) = pair(
        tmp_path,
        [unit(name, "0", 0.001, share=0.0, **timed(2800.0))],
        [unit(name, "0", 0.03, share=0.99, **timed(79.0))],
    ).rows
    assert (row["vanilla_share"], row["aka_share"], row["vanilla_s"], row["aka_s"]) == (0.0, 0.99, 0.001, 0.03)
    assert (round(row["vanilla_vs_production"], 2), round(row["aka_vs_production"], 1)) == (0.03, 1.2)
    assert row["speedup"] == pytest.approx(2800 / 79)


def test_a_pair_of_several_shapes_has_a_row_for_their_operator(tmp_path):
    before = [unit("l2_norm", str(i), 0.1, **timed(us)) for i, us in enumerate((10.0, 20.0, 90.0))]
    after = [unit("l2_norm", str(i), 0.2, **timed(10.0)) for i in range(3)]
    found = rows(pair(tmp_path, before, after), "shape")
    assert list(found) == [None, "0", "1", "2"] and found[None]["speedup"] == 2.0 and found["2"]["speedup"] == 9.0


def test_a_wrong_vanilla_kernel_has_no_speedup(tmp_path):
    before = [failed("runtime", "numeric_mismatch", "l2_norm", "0")]
    (row,) = pair(tmp_path, before, [unit("l2_norm", "0", 0.2)]).rows
    assert (row["vanilla_s"], row["aka_s"], row["speedup"]) == (0.0, 0.2, None)


def test_a_pair_says_which_units_are_in_doubt(tmp_path):
    table = pair(tmp_path, [unit("l2_norm", "0", 0.1)], [error("unstable", "l2_norm", "0")])
    assert table.rows[0]["speedup"] is None and "1 of these units ended in an evaluation error" in table.notes[-1]


@pytest.mark.parametrize("other", [{"dsl": "gluon"}, {"chip": "H20"}])
def test_a_pair_on_other_terms_is_refused(tmp_path, other):
    with pytest.raises(UserError, match="cannot be compared"):
        pair(tmp_path, [unit("l2_norm", "0", 0.1)], [unit("l2_norm", "0", 0.1, **other)])


def test_a_pair_without_a_unit_in_common_is_refused(tmp_path):
    with pytest.raises(UserError, match="no unit in common"):
        pair(tmp_path, [unit("l2_norm", "0", 0.1)], [unit("l2_norm", "1", 0.1)])


def test_a_pair_of_two_models_is_refused(tmp_path):
    paths = []
    for name in ("m1", "m2"):
        folder = write_generation(tmp_path / name, [generated("l2_norm")], about(model=name))
        paths.append(judged(tmp_path / f"run-{name}", {f"{folder}/sample-0": [unit("l2_norm", "0", 0.1)]}))
    with pytest.raises(UserError, match="of model m1"):
        read_pair(*paths, (), None)


def test_what_a_model_may_have_seen_is_said_of_its_set(tmp_path):
    folder = write_generation(tmp_path / "made", [generated("l2_norm")], about(seen="trained after the suite came out"))
    run = judged(tmp_path / "run", {f"{folder}/sample-0": [unit("l2_norm", "0", 0.1)]})
    (group,) = study(find_sets([run])).groups
    assert [note for note in group.notes if "trained after" in note] == [
        f"{group.sets[0].name} may have seen: trained after the suite came out"
    ]
