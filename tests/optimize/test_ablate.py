"""Ablations: equal budgets through real campaigns, resumed files, and figures that follow from the lines alone."""

from __future__ import annotations

import fcntl
import json
import math
import random
import shutil
import subprocess

import pytest

from atrex.agents.tuner import templates
from atrex.agents.tuner.knobs import find, render
from atrex.errors import UserError
from atrex.optimize.ablate.campaigns import Ablation, Design, read
from atrex.optimize.ablate.lab import ReplicateLab, Replicates, Spent
from atrex.optimize.ablate.program import keeping
from atrex.optimize.ablate.table import area, curve, tabulate
from atrex.optimize.lab import UnitFailed
from atrex.problems.load import load_suite

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SHAPE = "15"


def design(**more) -> Design:
    fields = {
        "operator": "rms_norm", "shapes": (SHAPE,), "policies": ("none", "uniform"), "campaigns": 1, "budget": 20,
        "restarts": 3, "again": 3, "threads": 1, "seed": 0,
    }  # fmt: skip
    return Design(**fields | more)


# -- the lab ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replicates(tmp_path_factory):
    problem = load_suite(None).problem("rms_norm")
    with Replicates(problem, [SHAPE], tmp_path_factory.mktemp("kept"), 1) as found:
        yield found


@pytest.fixture(scope="module")
def source():
    return templates.path("cpp", "rms_norm").read_text()


@needs_compiler
def test_a_kernel_is_judged_once_and_its_library_is_what_it_compiled_to(replicates, source):
    records = replicates.judged(source)
    assert [r.verdict.status.value for r in records] == ["passed"]
    assert records[0].performance.median_us > 0 and 0 < records[0].roofline.S < 1
    assert replicates.judged(source) is records
    other = replicates.judged(render(source, {"UNROLL": 1}))
    assert other[0].compile.artifacts[0].sha256 != records[0].compile.artifacts[0].sha256


@needs_compiler
def test_a_kernel_with_wrong_values_fails(replicates, source):
    wrong = source.replace("from[i]) * scale", "from[i]) * 1.5f * scale").replace(
        "from + start + i) * scale", "from + start + i) * 1.5f * scale"
    )
    record = replicates.judged(wrong)[0]
    assert (record.verdict.status.value, record.verdict.category) == ("failed", "numeric_mismatch")


@needs_compiler
def test_a_kernel_that_crashes_is_named_and_the_next_one_is_measured(replicates, source):
    crashing = source.replace("def forward(self", "def forward(self, *a, **k):\n        os.abort()\n\n    def old(self")
    with pytest.raises(UnitFailed) as failed:
        replicates.pair(source, crashing, SHAPE, random.Random(0))
    assert failed.value.of_candidate
    assert min(replicates.pair(source, source, SHAPE, random.Random(0))) > 0


@needs_compiler
def test_a_round_over_the_budget_is_not_measured(replicates, source, tmp_path):
    (tmp_path / "a.py").write_text(source)
    lab = ReplicateLab(replicates, 2, random.Random(0))
    with pytest.raises(Spent), lab.contest(tmp_path / "a.py", tmp_path / "a.py") as measure:
        for _ in range(3):
            assert set(measure(None)) == {SHAPE}
    assert lab.rounds == 2 and lab.contested == []


def test_nothing_is_compiled_twice_and_an_error_is_not_kept(tmp_path):
    calls = []

    def compiler(command, **more):
        calls.append(command)
        source = (tmp_path / "k.cpp").read_text()
        if "error" in source:
            return subprocess.CompletedProcess(command, 1, "", "error")
        (tmp_path / command[-1]).write_text(f"{command[1]} {source}")
        return subprocess.CompletedProcess(command, 0, "", "")

    (tmp_path / "kept").mkdir()
    run = keeping(compiler, tmp_path / "kept")

    def build(text, flag, out):
        (tmp_path / "k.cpp").write_text(text)
        return run(["g++", flag, str(tmp_path / "k.cpp"), "-o", str(tmp_path / out)], capture_output=True).returncode

    assert [build("one", "-O3", "a.so"), build("one", "-O3", "b.so"), build("one", "-O1", "c.so")] == [0, 0, 0]
    assert len(calls) == 2 and (tmp_path / "b.so").read_text() == "-O3 one"
    assert (tmp_path / "c.so").read_text() == "-O1 one"
    assert [build("error", "-O3", "d.so"), build("error", "-O3", "d.so")] == [1, 1] and len(calls) == 4


# -- the campaigns ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_compiler
def test_campaigns_spend_one_budget_and_a_file_is_gone_on_with(tmp_path):
    out = tmp_path / "a.jsonl"
    lines = Ablation(design(), out, lambda line: None).run()
    found = [line for line in lines if "policy" in line]
    assert sorted(line["policy"] for line in found) == ["none", "uniform"]
    assert [line["spent"] for line in found] == [20, 20]
    assert sum("again" in line for line in lines) == 3
    text = out.read_text()
    cut = text[: text.index('{"policy"')] + '{"policy": "no'
    out.write_text(cut)
    again = Ablation(design(), out, lambda line: None).run()
    assert sorted(line["policy"] for line in again if "policy" in line) == ["none", "uniform"]
    assert [row.policy for row in tabulate(again).rows] == ["none", "uniform"]
    assert not (tmp_path / "a.jsonl.work").exists()
    assert Ablation(design(), out, lambda line: None).run() == again


def test_policies_alternate_within_every_number():
    order = design(policies=("none", "uniform", "category"), campaigns=20).order
    blocks = [order[i : i + 3] for i in range(0, 60, 3)]
    assert all({policy for _, policy in block} == {"none", "uniform", "category"} for block in blocks)
    assert len({tuple(policy for _, policy in block) for block in blocks}) > 2


@pytest.mark.parametrize("policies", [("none",), ("none", "none"), ("none", "best")])
def test_a_design_that_compares_nothing_is_refused(policies, tmp_path):
    with pytest.raises(UserError, match="--policies"):
        Ablation(design(policies=policies), tmp_path / "a.jsonl")


def test_a_file_of_another_design_is_refused(tmp_path):
    out = tmp_path / "a.jsonl"
    out.write_text(json.dumps({"design": {"operator": "rope"}}) + "\n")
    with pytest.raises(UserError, match="another ablation"):
        Ablation(design(), out)


def test_two_runs_do_not_write_to_one_file(tmp_path):
    ablation = Ablation(design(), tmp_path / "a.jsonl")
    with (tmp_path / "a.jsonl").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another run"):
            ablation.run()


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"operator": "rms_norm"}\n')
    with pytest.raises(UserError, match="ablate wrote"):
        read(tmp_path / "a.jsonl")


# -- the table -------------------------------------------------------------------------------------------------------


def lines(gains, budget=100, at=50):
    """Of two policies, campaigns that promote one kernel `at`; `gains` are its time ratios, by policy and campaign."""
    found = [{"design": {"policies": list(gains), "budget": budget}}]
    us = {}
    for policy, ratios in gains.items():
        for number, ratio in enumerate(ratios):
            key = f"{policy}{number}"
            us[key] = [[100.0 * ratio, 100.0]]
            found.append({
                "policy": policy, "number": number, "spent": budget, "restarts": 1, "proposals": 5, "repeated": 2,
                "duplicates": 1, "accepted": [{"at": at, "knobs": {"K": key}}],
            })  # fmt: skip
    return [*found, *({"again": i, "us": us} for i in range(3))]


def test_gains_are_what_was_measured_again_and_the_area_counts_when():
    table = tabulate(lines({"none": [2.0, 2.0], "uniform": [2.0, 2.0]}))
    assert table.rows[0].final.mean == pytest.approx(2.0)
    assert table.rows[0].area.mean == pytest.approx(math.sqrt(2.0))


def test_a_policy_that_is_better_in_every_campaign_is_shown_to_be():
    drawn = random.Random(0)
    noise = [drawn.uniform(0.95, 1.05) for _ in range(30)]
    table = tabulate(lines({"none": noise, "uniform": [1.2 * drawn.uniform(0.95, 1.05) for _ in noise]}))
    final = next(each for each in table.against if each.figure == "final")
    assert final.ratio.low > 1.1 and final.p < 0.01


def test_equal_policies_are_not():
    table = tabulate(lines({"none": [1.1] * 30, "uniform": [1.1] * 30}))
    assert all(each.p == 1.0 and each.ratio.mean == pytest.approx(1.0) for each in table.against)


def test_a_campaign_that_a_policy_lacks_is_left_out():
    table = tabulate(lines({"none": [1.0, 1.0, 9.0], "uniform": [1.0, 1.0]}))
    assert [(row.campaigns, row.final.mean) for row in table.rows] == [(2, 1.0), (2, 1.0)]


def test_a_curve_begins_at_the_baseline_and_holds_to_the_end():
    line = {"accepted": [{"at": 10, "knobs": {"K": 1}}, {"at": 40, "knobs": {"K": 2}}]}
    steps = curve(line, {"1": 0.5, "2": 0.25})
    assert steps == [(0, 0.0), (10, 0.5), (40, 0.25)]
    assert area(steps, 100) == pytest.approx((30 * 0.5 + 60 * 0.25) / 100)


def test_the_template_has_the_knobs_that_an_ablation_searches(source):
    assert {"BLOCK", "UNROLL", "VECTOR", "PER_THREAD"} <= {knob.name for knob in find(source)}
