"""`atrex suite weights`, `stats` and `list --sort`, and the distribution of the published suite."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.problems import load_suite
from atrex.problems.load import SHIPPED
from atrex.problems.stats import intensity_and_regime, suite_stats, suite_weights
from atrex.roofline.work import Work

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "operators.json"
SUITE = load_suite()
STATS = suite_stats(SUITE)
COMPLETE = len(SUITE.problems) == 30
whole = pytest.mark.skipif(not COMPLETE, reason="the suite is not complete")


def atrex(*arguments):
    result = CliRunner().invoke(app, ["suite", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def published():
    if not GOLDEN.exists():
        pytest.skip("published figures not at hand")
    return json.loads(GOLDEN.read_text())


# ---- the paper's section 3.5


@whole
def test_head_of_the_weights():
    by_rank = [row.cumulative for row in STATS.operators]
    assert by_rank[4] == pytest.approx(0.637, abs=5e-4)
    assert by_rank[9] == pytest.approx(0.80, abs=5e-3)
    assert by_rank[-1] == pytest.approx(1)
    assert all(row.weight < 0.03 for row in STATS.operators[10:])


@whole
def test_counts_of_the_published_release():
    assert (len(STATS.operators), STATS.shapes, STATS.missing) == (30, 440, [])
    assert STATS.dtypes == {"bf16": 19, "fp8_e4m3": 5, "fp16": 2, "fp32": 2, "int32": 2}
    assert STATS.regimes == {"memory": 16, "compute": 10, "index": 4}
    assert STATS.origins == {"vllm": 292, "sglang": 90, "rtp-llm": 38, "aiter": 20}
    assert STATS.backends["XPU-A"] == {"aiter": 266, "sglang": 151, "rtp": 23}
    assert STATS.phases == {"prefill/decode": 22, "decode": 4, "prefill": 4}


def test_figures_of_each_operator_are_the_published_ones(published):
    for row in STATS.operators:
        theirs = published[row.operator]
        works = [Work({"vector": u["flops"]}, u["read_bytes"], u["write_bytes"]) for u in theirs["units"].values()]
        intensity, regime = intensity_and_regime(works)
        assert row.regime == regime
        assert (row.shapes, row.dtype, row.phase) == (len(works), theirs["dtype"], theirs["phase"])
        assert (row.profiles, row.framework) == (theirs["num_profiles"], theirs["origin"]["framework"])
        assert row.weight == pytest.approx(theirs["weight"], rel=1e-12)
        if intensity is not None:  # ours differs where the published W or Q is wrong, by less than a factor of two
            assert 0.5 < row.intensity / intensity < 2


def test_added_shapes_count_apart():
    row = next(row for row in STATS.operators if row.operator == "topk_filter")
    assert (row.shapes, row.added) == (8, 6)


# ---- rules


def test_regime_is_by_the_median_shape():
    works = [Work({"matrix": {"bf16": flops}}, 60, 40) for flops in (100, 999, 10**6)]
    assert intensity_and_regime(works) == (9.99, "memory")
    works[1] = Work({"matrix": {"bf16": 400}, "vector": {"fp32": 600}}, 60, 40)
    assert intensity_and_regime(works) == (10.0, "compute")
    assert intensity_and_regime([Work({"vector": {"fp32": 0}}, 60, 40)]) == (None, "index")


def test_share_is_among_the_operators_of_a_phase():
    rows = suite_weights(SUITE, "decode")
    assert {row.phase for row in rows} == {"decode", "prefill/decode"}
    assert rows[-1].cumulative == pytest.approx(1) and sum(row.weight for row in rows) < 1
    assert [row.weight for row in rows] == sorted((row.weight for row in rows), reverse=True)


def test_suite_without_weights_has_none(tmp_path):
    shutil.copytree(SHIPPED / "rms_norm", tmp_path / "rms_norm", ignore=shutil.ignore_patterns("__pycache__"))
    found = suite_stats(load_suite(tmp_path))
    assert found.operators[0].weight is None and found.shapes == 56
    assert "-" in atrex("weights", "--suite", str(tmp_path))
    assert "1 operators, 56 published shapes" in atrex("stats", "--suite", str(tmp_path))


def test_weight_without_a_folder_is_named(tmp_path):
    shutil.copytree(SHIPPED / "rms_norm", tmp_path / "rms_norm", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "weights.json").write_text('{"importance": {"rms_norm": 0.25, "layer_norm": 0.75}}')
    found = suite_stats(load_suite(tmp_path))
    assert found.missing == ["layer_norm"] and found.operators[0].cumulative == 1
    assert "weights without a folder: layer_norm" in atrex("stats", "--suite", str(tmp_path))


# ---- what a user sees


def test_stats_as_json_is_what_the_library_says():
    document = json.loads(atrex("stats", "--json"))
    assert document.pop("version") == SUITE.version
    assert document == json.loads(json.dumps(STATS.as_json()))


def test_stats_as_a_table_has_a_line_an_operator():
    lines = atrex("stats").splitlines()
    assert all(any(line.startswith(f"{row.operator} ") for line in lines) for row in STATS.operators)
    assert any(line.startswith("production backend on XPU-A") for line in lines)


def test_weights_come_heaviest_first():
    rows = json.loads(atrex("weights", "--json"))
    assert rows[0]["operator"] == "unified_attention" and rows[0]["weight"] == pytest.approx(0.3608, abs=5e-5)
    lines = atrex("weights", "--phase", "prefill").splitlines()
    assert "topk_filter" not in "".join(lines) and lines[1].startswith("unified_attention")


def test_list_by_weight():
    problems = json.loads(atrex("list", "--sort", "weight", "--json"))["problems"]
    assert [p["weight"] for p in problems] == sorted((p["weight"] for p in problems), reverse=True)


@pytest.mark.parametrize("arguments", [("weights", "--phase", "train"), ("list", "--sort", "size")])
def test_bad_input_is_a_user_error(arguments):
    with pytest.raises(UserError, match="expected"):
        atrex(*arguments)
