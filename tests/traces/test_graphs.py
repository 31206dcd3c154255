"""Replays of graphs joined to their captures."""

import numpy as np
import pytest

from atrex.traces import importer
from atrex.traces.pipeline import Options
from tests.traces import scene

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
# (operator, kernel): what a captured step launches
BODY = [
    ("aten::pow", ELEMENTWISE.format("pow_tensor_scalar_kernel_impl<float>")),
    ("aten::mul", ELEMENTWISE.format("MulFunctor<float>")),
    ("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"),
    ("aten::silu", ELEMENTWISE.format("silu_kernel")),
    ("aten::add", ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>")),
    ("_C::custom", "my_custom_kernel"),
]


def capture(rocm=False, body=BODY, name="capture_16_FULL", warmup=1, pieces=1):
    """A trace of captures; `warmup` launches run at once, inside the capture's window too."""
    built = scene.Scene(rocm=rocm)
    begin = built.host
    prefix = "hip" if rocm else "cuda"
    for piece in range(pieces):
        for _ in range(warmup):
            built.call(["aten::fill_"], ELEMENTWISE.format("FillFunctor<long>"), 900)
        built.launch(None, 0, f"{prefix}StreamBeginCapture")
        for op, kernel in body:
            if rocm:
                built.call([op], None, 0, f"Piece{piece}Norm_0", [[16, 4096]])
                built.events[-3 if built.events[-1]["cat"] == "python_function" else -2]["args"]["kernel"] = kernel
            else:
                built.call([op], None, 0, f"Piece{piece}Norm_0", [[16, 4096]])
        for _ in range(warmup):
            built.call(["aten::fill_"], ELEMENTWISE.format("FillFunctor<long>"), 900)
        built.launch(None, 0, f"{prefix}StreamEndCapture")
    built.add("user_annotation", name, begin, built.host - begin)
    return built


def replay(rocm=False, kernels=None, steps=2, pieces=1, nodes=False):
    """A trace of replays of `kernels`."""
    built = scene.Scene(rocm=rocm)
    kernels = [k for _, k in BODY] if kernels is None else kernels
    for _ in range(steps):
        begin = built.host
        built.host += 1_000
        for _ in range(pieces):
            launch = built.launch(None, 0, "hipGraphLaunch" if rocm else "cudaGraphLaunch")
            for i, kernel in enumerate(kernels):
                built.record(kernel, 1_000 + i, launch, **({"graph node id": 100 + i} if nodes else {}))
        built.add("user_annotation", "step[DECODE bs=13]", begin, built.host - begin)
        built.host += 500
    return built


def analyse(tmp_path, built, name, captures=()):
    path = tmp_path / name
    path.write_bytes(scene.render(built.events))
    return importer.analyse_file(path, Options(), captures, name)


def joined(tmp_path, captured, replayed):
    graphs = analyse(tmp_path, captured, "capture.json").captured
    return graphs, analyse(tmp_path, replayed, "replay.json", graphs)


def ops(analysis):
    order = np.argsort(analysis.trace.device["start"].to_numpy(), kind="stable")
    where = [int(analysis.joins.site[i]) for i in order]
    return [analysis.sites[s].context.op if s >= 0 else None for s in where]


@pytest.mark.parametrize("rocm", [False, True])
def test_replayed_kernels_get_the_operators_of_their_capture(tmp_path, rocm):
    graphs, analysis = joined(tmp_path, capture(rocm), replay(rocm))
    assert [len(g.nodes) for g in graphs] == [len(BODY)] and (graphs[0].size, graphs[0].mode) == (16, "FULL")
    assert ops(analysis) == [op for op, _ in BODY] * 2
    assert set(analysis.joins.link) == {"capture"} and analysis.joins.agreement == [1.0, 1.0]
    assert analysis.sites[analysis.joins.site[0]].dims is not None


def test_launches_that_ran_at_once_are_no_nodes(tmp_path):
    graphs, _ = joined(tmp_path, capture(warmup=3), replay())
    assert len(graphs[0].nodes) == len(BODY)


def test_pieces_are_joined_in_order(tmp_path):
    graphs, analysis = joined(tmp_path, capture(pieces=3), replay(pieces=3))
    assert len(graphs) == 3
    order = np.argsort(analysis.trace.device["start"].to_numpy(), kind="stable")
    modules = [analysis.sites[analysis.joins.site[i]].context.module for i in order]
    assert modules == [f"Piece{p}Norm" for p in range(3) for _ in BODY] * 2


def test_a_node_more_in_the_capture_is_aligned(tmp_path):
    body = [*BODY[:3], ("aten::cat", "void at::native::CatArrayBatchedCopy<float>(int)"), *BODY[3:]]
    _, analysis = joined(tmp_path, capture(body=body), replay())
    assert ops(analysis) == [op for op, _ in BODY] * 2


def test_a_kernel_more_in_the_replay_stays_unjoined(tmp_path):
    kernels = [k for _, k in BODY]
    kernels.insert(2, ELEMENTWISE.format("rsqrt_kernel_cuda"))
    _, analysis = joined(tmp_path, capture(), replay(kernels=kernels))
    assert ops(analysis) == [*(op for op, _ in BODY[:2]), None, *(op for op, _ in BODY[2:])] * 2
    assert sorted(set(analysis.joins.link)) == ["capture", "graph"]


def test_equal_counts_alone_join_nothing(tmp_path):
    kernels = [k for _, k in reversed(BODY)]
    _, analysis = joined(tmp_path, capture(), replay(kernels=kernels))
    assert set(analysis.joins.link) == {"graph"} and analysis.joins.joined == 0


def test_a_rocm_kernel_of_another_name_is_not_joined(tmp_path):
    kernels = [k for _, k in BODY]
    kernels[5] = "another_kernel"
    body = BODY * 4
    _, analysis = joined(tmp_path, capture(True, body), replay(True, [k for _, k in BODY * 3] + kernels, steps=1))
    assert ops(analysis) == [op for op, _ in body][:-1] + [None]


def test_node_ids_restore_the_order_of_capture(tmp_path):
    built = replay(nodes=True, steps=1)
    records = [e for e in built.events if e["cat"] == "kernel"]
    records[1]["ts"], records[2]["ts"] = records[2]["ts"], records[1]["ts"]  # as on two streams
    _, analysis = joined(tmp_path, capture(), built)
    swapped = [op for op, _ in BODY]
    swapped[1], swapped[2] = swapped[2], swapped[1]
    assert ops(analysis) == swapped


def test_the_capture_of_the_right_size_is_taken(tmp_path):
    small = analyse(tmp_path, capture(name="capture_8_FULL"), "capture8.json").captured
    right = analyse(tmp_path, capture(name="capture_16_FULL"), "capture16.json").captured
    large = analyse(tmp_path, capture(name="capture_32_FULL"), "capture32.json").captured
    analysis = analyse(tmp_path, replay(), "replay.json", [*large, *small, *right])  # a step of 13 requests
    assert set(analysis.joins.capture.tolist()) == {"capture16.json"}


def test_graph_kernels_without_a_capture_are_counted_apart(tmp_path):
    analysis = analyse(tmp_path, replay(), "replay.json")
    assert set(analysis.joins.link) == {"graph"}
    assert set(analysis.phases.phase) == {"decode"}


def test_kernels_of_a_graph_keep_the_moe_call_of_their_capture(tmp_path):
    body = [
        ("vllm::moe_forward", "fused_moe_kernel"),
        ("aten::mm", BODY[2][1]),
        ("vllm::moe_forward", "fused_moe_kernel"),
    ]
    _, analysis = joined(tmp_path, capture(True, body), replay(True, [k for _, k in body], steps=1))
    order = np.argsort(analysis.trace.device["start"].to_numpy())
    first, between, second = (int(analysis.joins.group[i]) for i in order)
    assert first >= 0 and second >= 0 and first != second and between == -1
