"""Published figures that the tables reproduce: of the deployed kernels by their times, and the paper's counts."""

import json
import re
from pathlib import Path
from statistics import median

import pytest
from studies import about, generated, judged, write_generation
from synthetic import failed, unit

from atrex.problems.stats import COMPUTE_BOUND
from atrex.report.study.document import study
from atrex.report.study.sets import find_sets
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.units import s_j

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
golden = pytest.mark.skipif(not (GOLDEN / "operators.json").exists(), reason="the published figures are not here")


def tables(path):
    (group,) = study(find_sets([path])).groups
    return {t.name: t.rows for t in group.tables}


@pytest.fixture(scope="module")
def published():
    return json.loads((GOLDEN / "operators.json").read_text())


@pytest.fixture
def deployed(tmp_path, published):
    """The production kernels as a candidate set on XPU-A, at their published times."""
    units = [
        unit(name, shape, s_j(1000 * u["sol_ms"]["XPU-A"], u["production_us"]["XPU-A"]), chip="XPU-A")
        for name, operator in published.items() for shape, u in operator["units"].items()
    ]  # fmt: skip
    return tables(judged(tmp_path / "run", {"deployed": units}))


@golden
def test_the_deployed_kernels_s_agg(deployed):
    assert round(deployed["main"][0]["s_agg"], 4) == 0.1304


@golden
def test_every_operators_s_is_that_of_its_published_times(deployed):
    found = {row["operator"]: row["s_deployed"] for row in deployed["difficulty"]}
    said = re.findall(r"^\*\*(\w+)\*\*.*?S_prod ([\d.]+?)\.? ", (GOLDEN / "OPERATORS.md").read_text(), re.MULTILINE)
    assert len(said) == 30
    assert {name: round(found[name], 4) for name, _ in said} == {name: float(value) for name, value in said}


@golden
def test_regimes_and_weights_are_the_published_ones(deployed, published):
    """16 memory-bound, 10 compute-bound and 4 operators without arithmetic: the paper, section 4.5."""
    (row,) = deployed["regimes"]
    assert (row["memory_operators"], row["compute_operators"], row["without_arithmetic"]) == (16, 10, 4)
    by_name = {row["operator"]: row for row in deployed["difficulty"]}
    for name, operator in published.items():
        ratios = [sum(u["flops"].values()) / (u["read_bytes"] + u["write_bytes"]) for u in operator["units"].values()]
        middle = median(ratios)
        expected = "index" if not any(ratios) else "compute" if middle >= COMPUTE_BOUND else "memory"
        assert by_name[name]["regime"] == expected, name
        assert by_name[name]["weight"] == pytest.approx(operator["weight"], abs=1e-6)


def test_the_papers_failure_counts_have_its_shares(tmp_path):
    """Its Table 7: 683 failing units, over six sets of 440."""
    counts = {
        ("compile", "exception"): 261, ("compile", "timeout_or_oom"): 85, ("compile", "not_a_module"): 19,
        ("runtime", "numeric_mismatch"): 257, ("runtime", "timeout"): 26, ("runtime", "exception"): 11,
        ("performance", "over_budget"): 24,
    }  # fmt: skip
    ways = [way for way, n in counts.items() for _ in range(n)]
    units = [(name, str(i)) for name, n in PUBLISHED_SHAPES.items() for i in range(n)]
    folders = {f"m{k}": [failed(*way, *u) for way, u in zip(ways[k::6], units, strict=False)] for k in range(6)}
    found = tables(judged(tmp_path / "run", folders))["failures"]
    assert [row["units"] for row in found] == [261, 85, 19, 257, 26, 11, 24]
    assert [round(100 * row["share"], 1) for row in found] == [38.2, 12.4, 2.8, 37.6, 3.8, 1.6, 3.5]


def test_the_papers_tokens_per_correct_operator(tmp_path):
    """Its section 4.6: GPT-5.5 spends 1.19 M output tokens, is correct on 26 operators, 46 K each."""
    names = list(PUBLISHED_SHAPES)
    output = [1_190_000 // 30 + (i < 1_190_000 % 30) for i in range(30)]
    folder = write_generation(
        tmp_path / "made", [generated(n, output=t) for n, t in zip(names, output, strict=True)], about(model="gpt-5.5")
    )
    units = [
        unit(name, str(i)) if k < 26 else failed("runtime", "numeric_mismatch", name, str(i))
        for k, name in enumerate(names) for i in range(PUBLISHED_SHAPES[name])
    ]  # fmt: skip
    (row,) = tables(judged(tmp_path / "run", {f"{folder}/sample-0": units}))["tokens"]
    assert (row["output_tokens"], row["fully_correct"]) == (1_190_000, 26)
    assert round(row["tokens_per_correct"] / 1000) == 46
