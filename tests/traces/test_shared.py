"""Real traces, where they are: shares mapped and linked, the graph joins, the operators of a published table."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from atrex.traces import importer, summary
from atrex.traces.families.match import Matcher
from atrex.traces.linking import Context
from atrex.traces.pipeline import Options
from tests.traces import gold

SHARED = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not here")
KINETO = SHARED / "kineto"


def analyse(name, captures=()):
    return importer.analyse_file(KINETO / f"{name}.json.gz", Options(), captures, name)


def shares(analysis):
    return summary.summarize(analysis, "t", None, None)["shares"]


@pytest.mark.parametrize(
    ("name", "mapped", "linked"),
    [
        ("b200_vllm_eager_prefill", 0.97, 0.999),
        ("mi300_sglang_qwen3_8b_prefill", 0.97, 0.999),
        ("b300_sglang_qwen3_30b_a3b_decode", 0.97, None),
        ("mi300_sglang_qwen3_30b_a3b_decode", 0.97, None),
        ("h100_transformers_qwen15", 0.90, 0.65),
        ("mi300_transformers_qwen15", 0.90, 0.65),
        ("h200_transformers_qwen3_dense", 0.90, 0.999),
        ("h200_transformers_qwen3_moe", 0.90, 0.999),
        ("h200_transformers_qwen3_eager_decode", 0.90, 0.999),
    ],
)
def test_shares_of_device_time(name, mapped, linked):
    found = shares(analyse(name))
    assert found["mapped"] >= mapped and found["phase"] >= 0.97
    if linked is not None:
        assert found["linked"] >= linked


@pytest.fixture(scope="module")
def vllm_pair():
    captures = analyse("mi300_vllm_prefilldecode_piecewise_capture").captured
    return captures, analyse("mi300_vllm_prefilldecode_piecewise_execution", captures)


def test_the_vllm_pair_is_joined_exactly(vllm_pair):
    captures, analysis = vllm_pair
    assert sum(len(g.nodes) for g in captures) == 361 and len(captures) == 25
    assert int((analysis.joins.link == "capture").sum()) == 361
    nodes = {(g.trace, n.launch): n for g in captures for n in g.nodes}
    names = analysis.trace.device["name"].to_list()
    for row in np.flatnonzero(analysis.joins.link == "capture"):
        node = nodes[analysis.joins.capture[row], int(analysis.joins.capture_launch[row])]
        assert node.name == analysis.trace.strings[names[row]]
    found = shares(analysis)
    assert found["mapped"] >= 0.97 and found["linked"] >= 0.999 and found["operators"] >= 0.85


def test_mixed_steps_carry_their_token_share(vllm_pair):
    _, analysis = vllm_pair
    assert set(analysis.phases.phase) == {"mixed"}
    assert analysis.phases.share[0] == pytest.approx(8155 / 8192)


@pytest.fixture(scope="module")
def h200_pair():
    captures = analyse("h200_transformers_qwen3_graph_capture").captured
    return captures, analyse("h200_transformers_qwen3_graph_replay", captures)


def test_the_h200_pair_joins_every_kernel_of_every_replay(h200_pair):
    captures, analysis = h200_pair
    assert [len(g.nodes) for g in captures] == [309]
    per_replay = defaultdict(int)
    kinds = analysis.trace.device["kind"].to_list()
    for row in np.flatnonzero(analysis.joins.link == "capture"):
        per_replay[int(analysis.launch[row]), kinds[row]] += 1
    assert sorted(per_replay.values()) == [1] * 5 + [2] * 5 + [306] * 5


def test_the_eager_twin_of_the_h200_replay_agrees(h200_pair):
    """The same step launched eagerly: its kernels, in order, and the operator each of them came from."""
    _, analysis = h200_pair
    twin = analyse("h200_transformers_qwen3_eager_decode")

    def steps(one, by):
        start, kind = one.trace.device["start"].to_numpy(), one.trace.device["kind"].to_numpy()
        groups = defaultdict(list)
        for row in np.argsort(start, kind="stable"):
            if kind[row] == 0 and by[row] >= 0:
                groups[int(by[row])].append(int(row))
        return list(groups.values())

    def described(one, rows):
        names = one.trace.device["name"].to_list()
        return [(one.trace.strings[names[r]], one.sites[one.joins.site[r]].context.op) for r in rows]

    replayed = described(analysis, steps(analysis, analysis.launch)[0])
    eager = described(twin, steps(twin, twin.phases.step)[-1])
    # The eager step picks its token outside the graph's two last kernels, and some products choose other tiles.
    same_ops = [op for _, op in replayed][: len(eager)]
    agree = sum(a == b for a, b in zip(same_ops, [op for _, op in eager], strict=False))
    assert agree / len(eager) >= 0.97


@pytest.mark.parametrize(
    ("name", "kernels", "linked", "mapped"),
    [
        ("nsys/a100_saxpy_mpi.sqlite", 5, 1.0, 0.7),
        ("nsys/h100_2gpu_1s.sqlite", 3442, 0.5, 0.97),
        ("rocm/rocprofv3_908_results.json.gz", 43915, 0.0, 0.97),
        ("rocm/rocprofv3_kernel_trace.csv", 7, 0.0, 0.0),
        ("rocm/matmul_result.rpd", 29, 1.0, 0.97),
        ("rocm/rocprofv3_results.db", 10, 0.0, 0.7),
        ("kineto/mi308x_aiter.json", 6, 1.0, 0.0),
        ("kineto/large_integer.json.gz", 1, 0.0, 1.0),
    ],
)
def test_other_formats_and_oddities(name, kernels, linked, mapped):
    about = summary.summarize(importer.analyse_file(SHARED / name, Options()), "t", None, None)
    assert about["records"]["kernel"] == kernels
    assert about["shares"]["linked"] >= linked and about["shares"]["mapped"] >= mapped


GOLD = SHARED / "gold" / "sglang_qwen3_30b_a3b_diff_stats.csv"


def test_the_operators_of_the_published_table_agree():
    """Kernels of both decode traces by name alone, as in the replays, against the operator the table gives them."""
    matcher = Matcher()
    share, rows = gold.agreement(GOLD, lambda row: matcher.classify(row["name"]).family)
    assert rows == 1518 and share >= 0.99


def test_the_operators_of_the_published_table_agree_with_their_context():
    matcher = Matcher()

    def family(row):
        modules = tuple(m.strip().removeprefix("nn.Module: ") for m in row["nn_module_stack"].split(";") if m != "root")
        return matcher.classify(row["name"], context=Context(ops=(row["cpu_op_name"],), modules=modules)).family

    assert gold.agreement(GOLD, family)[0] >= 0.99


def test_the_replays_of_the_published_table_agree():
    """The kernels of the traces themselves, replayed from graphs, by the table's operator for a kernel of that name."""
    with GOLD.open() as file:
        known = {row["name"]: gold.expected(row) for row in csv.DictReader(file)}
    right = total = 0.0
    for name in ("mi300_sglang_qwen3_30b_a3b_decode", "b300_sglang_qwen3_30b_a3b_decode"):
        analysis = analyse(name)
        names, durations = analysis.trace.device["name"].to_list(), analysis.trace.device["dur"].to_list()
        for number, dur, assignment in zip(names, durations, analysis.assignment, strict=True):
            text = analysis.trace.strings[number]
            if text in known:
                total += dur
                right += dur * (analysis.assignments[assignment].family == known[text])
    assert right / total >= 0.99
