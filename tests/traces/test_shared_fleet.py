"""Real traces, where they are: shapes against the operands that a published table gives, and whole fleets."""

import ast
import csv
import json
from collections import defaultdict
from pathlib import Path

import pytest

from atrex.problems.load import load_suite
from atrex.traces.fleet.gather import gather
from atrex.traces.fleet.plan import make_plan
from atrex.traces.fleet.spec import Application, load_fleet
from atrex.traces.mining import operators
from atrex.traces.mining.calls import CallGroup, HostOp
from atrex.traces.mining.config import read_model_config
from atrex.traces.mining.dims import Call, values
from atrex.traces.mining.mine import mine
from tests.traces import fleets, gold

SHARED = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not here")
KINETO = SHARED / "kineto"
# Dimensions of Qwen3-30B-A3B and gpt-oss-20b from their published config.json.
QWEN3 = {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
         "vocab_size": 151936, "rms_norm_eps": 1e-6}  # fmt: skip
GPT_OSS = {"hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
           "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088,
           "rms_norm_eps": 1e-5}  # fmt: skip


def fleet_of(folder, traces, config, **more):
    (folder / "config.json").write_text(json.dumps(config))
    about = {"card_hours": 1, "traces": [str(KINETO / t) for t in traces], "model_config": "config.json", **more}
    fleet = load_fleet(fleets.document(folder / "fleet.yaml", {"applications": {"app": about}}))
    return fleet, gather(fleet, folder / "data", jobs=1)


GOLD = SHARED / "gold" / "sglang_qwen3_30b_a3b_diff_stats.csv"
TRACE = {"trace1": "mi300_sglang_qwen3_30b_a3b_decode", "trace2": "b300_sglang_qwen3_30b_a3b_decode"}


def told_by_the_table(source, config):
    """operator -> its shapes by the operands of the table's rows, read as those of a trace are."""
    found = defaultdict(set)
    with GOLD.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == source]
    for row in rows:
        operator = gold.expected(row)
        if operator not in operators.known():
            continue
        dims = [list(d) if isinstance(d, tuple) else d for d in ast.literal_eval(row["Input Dims"])]
        group = CallGroup("t", operator, "decode", None, [1.0], (), (HostOp(row["cpu_op_name"], False, dims),), (), (),
                          {"generation_requests": 16, "tokens": 16}, False, False)  # fmt: skip
        call = Call(group, config, Application(card_hours=1, traces=["-"], typical={"decode": {"context": 2048}}))
        chosen = operators.module(operator)
        found[operator].add(json.dumps(chosen.kwargs(values(chosen.dims(call))), sort_keys=True))
    return found


@pytest.mark.parametrize("source", sorted(TRACE))
def test_configured_shapes_of_graph_replays_are_those_of_the_published_table(source, tmp_path):
    """The traces of replays have no operand: step annotation and configuration against what really was passed."""
    fleet, gathered = fleet_of(tmp_path, [f"{TRACE[source]}.json.gz"], QWEN3, typical={"decode": {"context": 2048}})
    mined, unmined = mine(fleet, gathered, jobs=1)
    found = defaultdict(set)
    for each in mined:
        found[each.operator].add(json.dumps((each.init_kwargs, each.input_kwargs), sort_keys=True))
    table = told_by_the_table(source, read_model_config(tmp_path / "config.json"))
    assert len(found) >= 6
    for operator, shapes in found.items():
        assert shapes == table[operator], operator
    # On AMD two norms of heads a layer carry the name of the full-width norm: told apart by nothing, so not guessed.
    assert {u.operator for u in unmined} == ({"rms_norm"} if source == "trace1" else set())


def test_a_mixed_step_with_its_capture_has_every_shape(tmp_path):
    traces = [f"mi300_vllm_prefilldecode_piecewise_{kind}.json.gz" for kind in ("execution", "capture")]
    fleet, gathered = fleet_of(tmp_path, traces, GPT_OSS, chip="MI300X")
    mined, unmined = mine(fleet, gathered, jobs=1)
    assert not unmined
    (attention,) = {json.dumps(m.input_kwargs, sort_keys=True) for m in mined if m.operator == "unified_attention"}
    kwargs = json.loads(attention)
    counts = {name: [run["count"] * run["length"] for run in kwargs[name]] for name in ("seq_lens", "context_lens")}
    assert kwargs["num_seqs"] == 9 + 37 and sum(counts["seq_lens"]) == 8155 + 37
    assert sum(counts["context_lens"]) == (8430 - 8155) + (34489 - 37)
    experts = next(m for m in mined if m.operator == "fused_moe")
    assert experts.input_kwargs["num_experts"] == 32 and experts.dims["num_experts"].source == "traced"
    assert (len(experts.ns), experts.dims["hidden_size"].source) == (24, "configured")


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    folder = tmp_path_factory.mktemp("h200")
    content = {"applications": {
        "dense": {"card_hours": 300, "traces": [str(KINETO / "h200_transformers_qwen3_dense.json.gz"),
                                                str(KINETO / "h200_transformers_qwen3_graph_*.json.gz")]},
        "experts": {"card_hours": 100, "traces": [str(KINETO / "h200_transformers_qwen3_moe.json.gz")]},
    }}  # fmt: skip
    fleet = load_fleet(fleets.document(folder / "fleet.yaml", content))
    return fleet, gather(fleet, folder / "data", jobs=1)


def test_every_call_of_the_h200_traces_has_a_traced_shape(h200):
    mined, unmined = mine(*h200, jobs=1)
    assert not unmined
    dynamic = {d.source for m in mined for d in m.dims.values() if d.bucket is not None}
    assert dynamic == {"traced"} and {m.chip for m in mined} == {"H200"}
    norms = [m for m in mined if m.operator == "rms_norm" and m.phase == "prefill" and "dense" in m.trace]
    widths = {(m.input_kwargs["token_count"], m.input_kwargs["hidden_size"]): len(m.ns) for m in norms}
    # Four layers: two norms of full width each and the last one, one of 32 query heads, one of 8 key heads.
    assert widths == {(4096, 4096): 9, (4096 * 32, 128): 4, (4096 * 8, 128): 4}


def test_the_h200_traces_become_a_suite(h200):
    plan = make_plan(*h200, jobs=1)
    assert plan.covered_in_all > 0.95 and not plan.kept_out
    assert sum(plan.weights.weights.values()) == pytest.approx(1)
    assert set(plan.weights.weights) == {s.operator for s in plan.selections}
    for selection in plan.selections:
        problem = load_suite().problem(selection.operator)
        assert all(problem.operator == m.operator for k in selection.kept for m in k.bucket.mined)


def test_replays_and_their_eager_twin_have_the_same_norms(tmp_path):
    """The same step with and without host ranges around its kernels; the twin has no modules."""
    fleet, gathered = fleet_of(
        tmp_path,
        ["h200_transformers_qwen3_graph_*.json.gz", "h200_transformers_qwen3_eager_decode.json.gz"],
        {"rms_norm_eps": 1e-6},
    )
    mined, _ = mine(fleet, gathered, jobs=1)
    found = defaultdict(lambda: defaultdict(int))
    for each in mined:
        if each.operator in ("rms_norm", "silu_and_mul"):
            found["eager" in each.trace][json.dumps(each.input_kwargs)] += len(each.ns)
    assert found[True] == found[False] and len(found[True]) == 4
