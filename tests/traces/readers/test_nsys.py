"""Nsight Systems exports, old and new schema."""

import sqlite3

import pytest

from atrex.errors import UserError
from atrex.traces import importer, readers
from atrex.traces.pipeline import Options

PID, TID = 4321, 4322
GLOBAL_PID = 0x1 << 48 | PID << 24
GLOBAL_TID = GLOBAL_PID | TID
KERNELS = [
    "void vllm::rms_norm_kernel<c10::BFloat16, 8>(int)",
    "nvjet_tst_64x8",
    "void flash::flash_fwd_kernel<T<1>>(P)",
]


def export(path, new=True, graphs=0, kernels=True, nodes=False):
    """Three kernels in a decode step, launched under torch's ranges; optionally in a graph."""
    db = sqlite3.connect(path)
    strings: list[str] = []

    def s(text):
        if text not in strings:
            strings.append(text)
        return strings.index(text)

    extra = ", graphId, clusterX, greenContextId" if new else ""
    db.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, "
        "correlationId, globalPid, demangledName, shortName, gridX, gridY, "
        f"gridZ, blockX, blockY, blockZ, graphNodeId{extra})"
    )
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid,"
               " correlationId, nameId, returnValue)")  # fmt: skip
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId,"
               " correlationId, globalPid, bytes, copyKind)")  # fmt: skip
    db.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text TEXT, globalTid,"
               " textId, domainId)")  # fmt: skip
    db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    meta = "META_DATA_EXPORT" if new else "EXPORT_META_DATA"
    db.execute(f"CREATE TABLE {meta} (name TEXT, value TEXT)")
    db.execute(f"INSERT INTO {meta} VALUES ('EXPORT_SCHEMA_VERSION', ?)", ("3.25.0" if new else "2.9.1",))
    db.execute("CREATE TABLE TARGET_INFO_GPU (id, name TEXT)")
    db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200')")
    db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs)")
    db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000)")
    ranges = [(1_000, 90_000, "execute_context_0(0)_generation_16(16)")]
    ops = ["_C::rms_norm", "aten::mm", "vllm::unified_attention_with_output"]
    for i, (kernel, op) in enumerate(zip(KERNELS, ops, strict=True)):
        at = 2_000 + 10_000 * i
        ranges.append((at, at + 9_000, f"{op}, seq = 7, op_id = {300 + i}, sizes = [[16, 4096], []]"))
        correlation = 77 if nodes else 100 + i
        if not nodes:
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0)",
                       (at + 3_000, at + 5_000, GLOBAL_TID, correlation, s("cudaLaunchKernel_v7000")))  # fmt: skip
        if kernels:
            row = [
                50_000 + 9_000 * i,
                50_000 + 9_000 * i + 5_001,
                0,
                1,
                7,
                correlation,
                GLOBAL_PID,
                s(kernel),
                s(kernel),
            ]
            row += [132, 1, 1, 128, 1, 1, 0x500000000 + i if nodes else None] + ([5, 0, 0] if new else [])
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(row))})", row)
    if nodes:
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,77,?,0)",
                   (45_000, 46_000, GLOBAL_TID, s("cudaGraphLaunch_v10000")))  # fmt: skip
        db.execute("CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start, end, eventClass, globalTid,"
                   " nameId, graphNodeId, originalGraphNodeId)")  # fmt: skip
        for i in range(3):
            at = 2_000 + 10_000 * i
            name = s("cudaLaunchKernel_v7000")
            db.execute("INSERT INTO CUDA_GRAPH_NODE_EVENTS VALUES (?,?,0,?,?,?,NULL)",
                       (at + 3_000, at + 4_000, GLOBAL_TID, name, 0x100000000 + i))  # fmt: skip
            db.execute("INSERT INTO CUDA_GRAPH_NODE_EVENTS VALUES (44000,44100,0,?,?,?,?)",
                       (GLOBAL_TID, s("cudaGraphInstantiate_v10000"), 0x500000000 + i, 0x100000000 + i))  # fmt: skip
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (95000, 96000, 0, 7, 900, ?, 64, 8)", (GLOBAL_PID,))
    for start, end, text in ranges:
        if new:
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,?,NULL,0)", (start, end, text, GLOBAL_TID))
        else:
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,NULL,?,?,0)", (start, end, GLOBAL_TID, s(text)))
    if graphs:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, "
                   "correlationId, globalPid, graphId)")  # fmt: skip
        for i in range(graphs):
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,0,7,?,?,5)",
                       (200_000 + 9_000 * i, 205_000 + 9_000 * i, 800 + i, GLOBAL_PID))  # fmt: skip
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(strings)))
    db.commit()
    db.close()
    return path


def families(analysis):
    order = analysis.trace.device["start"].arg_sort()
    return [analysis.assignments[analysis.assignment[i]].family for i in order]


@pytest.mark.parametrize("new", [True, False])
def test_kernels_are_linked_to_ranges_in_either_schema(tmp_path, new):
    analysis = importer.analyse_file(export(tmp_path / "a.sqlite", new), Options())
    assert families(analysis) == ["rms_norm", "gemm", "attention_forward", "copy"]
    assert analysis.phases.phase.tolist() == ["decode"] * 3 + ["none"]
    site = analysis.sites[analysis.joins.site[0]]
    assert site.context.ops == ("_C::rms_norm",) and site.dims == "[[16, 4096], []]"
    assert analysis.trace.meta.dialect == f"schema {'3.25.0' if new else '2.9.1'}"
    assert analysis.trace.meta.devices == ["NVIDIA H200"] and analysis.trace.meta.base_ns == 1790000000000000000
    assert analysis.trace.device["dur"].to_list()[:3] == [5_001] * 3


def test_an_export_of_whole_graphs_is_refused_with_the_flag_to_use(tmp_path):
    path = export(tmp_path / "a.sqlite", graphs=4, kernels=False)
    with pytest.raises(UserError, match="4 graph replays without their kernels: .*--cuda-graph-trace=node"):
        readers.reader_of(path).read(path)


def test_whole_graphs_beside_kernels_are_kept_and_said(tmp_path):
    analysis = importer.analyse_file(export(tmp_path / "a.sqlite", graphs=2), Options())
    assert families(analysis)[-2:] == ["graph", "graph"]
    assert any("--cuda-graph-trace=node" in note for note in analysis.trace.meta.notes)


def test_kernels_of_graph_nodes_are_joined_to_the_call_that_created_the_node(tmp_path):
    analysis = importer.analyse_file(export(tmp_path / "a.sqlite", nodes=True), Options())
    assert analysis.joins.link.tolist()[:3] == ["node"] * 3
    ops = [analysis.sites[s].context.op for s in analysis.joins.site[:3]]
    assert ops == ["_C::rms_norm", "aten::mm", "vllm::unified_attention_with_output"]


def test_an_export_without_kernels_says_how_to_record(tmp_path):
    path = export(tmp_path / "a.sqlite", kernels=False)
    with pytest.raises(UserError, match="no kernels in it: record with"):
        readers.reader_of(path).read(path)


def test_a_database_cut_short_is_one_line(tmp_path):
    path = export(tmp_path / "a.sqlite")
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(UserError, match="a.sqlite"):
        readers.reader_of(path).read(path)


def test_another_database_is_no_trace(tmp_path):
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(UserError, match="no trace format"):
        readers.reader_of(tmp_path / "a.sqlite")
