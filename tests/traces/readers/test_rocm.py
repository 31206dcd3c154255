"""AMD's formats: rocprofv3 JSON and CSV, rocpd in both layouts, RPD, rocprof v1. The same run in each."""

import gzip
import json
import sqlite3

import pytest

from atrex.errors import UserError
from atrex.traces import importer, readers
from atrex.traces.pipeline import Options

PID, TID = 908, 909
KERNELS = [
    ("_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8EEEvPT_i.kd", "void vllm::rms_norm_kernel<c10::BFloat16, 8>(int)"),
    ("Cijk_Alik_Bljk_BBS_BH_MT128x256x32.kd", "Cijk_Alik_Bljk_BBS_BH_MT128x256x32"),
    ("kernel_paged_attention_2d.kd", "kernel_paged_attention_2d"),
]  # fmt: skip
FAMILIES = ["rms_norm", "gemm", "paged_attention_decode"]
BEGIN = 63_857_982_592_000
STEP = "step[DECODE bs=16]"


def at(i):
    return BEGIN + 10_000 * i


def rocprofv3(apis=True):
    process = {
        "metadata": {"pid": PID, "init_time": BEGIN, "fini_time": BEGIN + 10**6},
        "agents": [
            {"id": {"handle": 37944}, "type": 1, "name": "AMD EPYC", "product_name": "AMD EPYC"},
            {"id": {"handle": 37946}, "type": 2, "name": "gfx950", "product_name": "AMD Instinct MI350X"},
        ],
        "kernel_symbols": [{"kernel_id": 0, "kernel_name": "", "formatted_kernel_name": 0}] + [
            {"kernel_id": 8 + i, "kernel_name": m, "formatted_kernel_name": d} for i, (m, d) in enumerate(KERNELS)
        ],
        "strings": {
            "buffer_records": [{"kind": "NONE", "operations": []},
                               {"kind": "HIP", "operations": ["", "hipModuleLaunchKernel"]},
                               {"kind": "COPY", "operations": ["", "MEMORY_COPY_HOST_TO_DEVICE"]},
                               {"kind": "MARKER", "operations": ["roctxRangePushA"]}],
            "marker_api": [{"key": 900, "value": STEP}],
        },
        "buffer_records": {
            "kernel_dispatch": [
                {"thread_id": TID, "correlation_id": {"internal": 1 + i}, "start_timestamp": at(i) + 5_000,
                 "end_timestamp": at(i) + 7_001, "stream_id": {"handle": 0},
                 "dispatch_info": {"agent_id": {"handle": 37946}, "queue_id": {"handle": 3}, "kernel_id": 8 + i,
                                   "workgroup_size": {"x": 256, "y": 1, "z": 1},
                                   "grid_size": {"x": 1000, "y": 2, "z": 1}}}
                for i in range(3)
            ],
            "hip_api": [{"kind": 1, "operation": 1, "thread_id": TID, "correlation_id": {"internal": 1 + i},
                         "start_timestamp": at(i), "end_timestamp": at(i) + 900} for i in range(3)] if apis else [],
            "marker_api": [{"kind": 3, "operation": 0, "thread_id": TID, "correlation_id": {"internal": 900},
                            "start_timestamp": BEGIN - 10, "end_timestamp": BEGIN + 90_000}],
            "memory_copy": [{"kind": 2, "operation": 1, "thread_id": TID, "correlation_id": {"internal": 77},
                             "start_timestamp": at(8), "end_timestamp": at(8) + 500, "bytes": 4096,
                             "dst_agent_id": {"handle": 37946}, "src_agent_id": {"handle": 37944}}],
        },
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [process]}


def write_json(path, gz=False, **more):
    data = json.dumps(rocprofv3(**more)).encode()
    path.write_bytes(gzip.compress(data) if gz else data)
    return path


def write_csv(path, apis=True, old=False):
    """`old` lacks streams and process ids and numbers agents plainly."""
    columns = [
        "Kind",
        "Agent_Id",
        "Queue_Id",
        "Thread_Id",
        "Dispatch_Id",
        "Kernel_Id",
        "Kernel_Name",
        "Correlation_Id",
        "Start_Timestamp",
        "End_Timestamp",
        *(f"Workgroup_Size_{a}" for a in "XYZ"),
        *(f"Grid_Size_{a}" for a in "XYZ"),
    ]
    if not old:
        columns.insert(3, "Stream_Id")
    lines = [",".join(f'"{c}"' for c in columns)]
    for i, (_, name) in enumerate(KERNELS):
        agent = "1" if old else '"Agent 1"'
        values = [
            '"KERNEL_DISPATCH"',
            agent,
            3,
            TID,
            i,
            8 + i,
            f'"{name}"',
            1 + i,
            at(i) + 5_000,
            at(i) + 7_001,
            256,
            1,
            1,
            1000,
            2,
            1,
        ]
        if not old:
            values.insert(3, 0)
        lines.append(",".join(map(str, values)))
    path.write_text("\n".join(lines) + "\n")
    header = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    if apis:
        rows = [
            f'"HIP_RUNTIME_API","hipModuleLaunchKernel",{PID},{TID},{1 + i},{at(i)},{at(i) + 900}' for i in range(3)
        ]
        path.with_name(path.name.replace("kernel", "hip_api")).write_text(header + "\n".join(rows) + "\n")
    row = f'"MARKER_CORE_API","{STEP}",{PID},{TID},900,{BEGIN - 10},{BEGIN + 90_000}\n'
    path.with_name(path.name.replace("kernel", "marker_api")).write_text(header + row)
    return path


def write_rocpd(path, tracks=False, suffix="_00000abc", copies=True):
    """`tracks`: times and threads in tables of their own, as the first schema 3 had them."""
    db = sqlite3.connect(path)

    def table(name, columns):
        db.execute(f'CREATE TABLE "rocpd_{name}{suffix}" ({columns})')
        db.execute(f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM "rocpd_{name}{suffix}"') if suffix else None

    def insert(name, *values):
        db.execute(f'INSERT INTO "rocpd_{name}{suffix}" VALUES ({",".join("?" * len(values))})', values)

    table("metadata", "id, tag, value")
    insert("metadata", 1, "schema_version", "3")
    table("string", "id, guid, string")
    texts = [
        "HIP_RUNTIME_API_EXT",
        "MARKER_CORE_RANGE_API",
        "hipModuleLaunchKernel",
        "roctxRangePushA",
        "HOST_TO_DEVICE",
    ]
    for i, text in enumerate(texts, 1):
        insert("string", i, "g", text)
    table("info_agent", "id, guid, type, type_index, name, product_name")
    insert("info_agent", 1, "g", "CPU", 0, "EPYC", "AMD EPYC")
    insert("info_agent", 2, "g", "GPU", 0, "gfx950", "AMD Instinct MI350X")
    table("info_kernel_symbol", "id, guid, kernel_name, display_name")
    table("event", "id, guid, category_id, correlation_id, extdata")
    if tracks:
        table("timestamp", "id, guid, value")
        table("track", "id, guid, pid, tid, agent_id, queue_id, stream_id")
        insert("track", 1, "g", PID, TID, 2, 3, None)
        place = "track_id, start_id, end_id"
    else:
        place = "pid, tid, agent_id, queue_id, stream_id, start, end"
    sizes = "workgroup_size_x, workgroup_size_y, workgroup_size_z, grid_size_x, grid_size_y, grid_size_z"
    table("kernel_dispatch", f"id, guid, kernel_id, event_id, {sizes}, {place}")
    table("region", f"id, guid, name_id, event_id, {place.replace('agent_id, queue_id, stream_id, ', '')}")
    table("memory_copy", f"id, guid, name_id, event_id, size, {place.replace('agent_id', 'dst_agent_id')}")
    stamps = iter(range(1, 1000))

    def where(start, end, host=False):
        if not tracks:
            return (PID, TID, start, end) if host else (PID, TID, 2, 3, 0, start, end)
        ids = [next(stamps), next(stamps)]
        for number, value in zip(ids, (start, end), strict=True):
            insert("timestamp", number, "g", value)
        return (1, *ids)

    for i, (mangled, display) in enumerate(KERNELS):
        insert("info_kernel_symbol", 8 + i, "g", mangled, display)
        insert("event", 10 + i, "g", 1, 1 + i, "{}")
        insert("event", 20 + i, "g", 1, 1 + i, "{}")
        insert("kernel_dispatch", i, "g", 8 + i, 10 + i, 256, 1, 1, 1000, 2, 1, *where(at(i) + 5_000, at(i) + 7_001))
        insert("region", i, "g", 3, 20 + i, *where(at(i), at(i) + 900, True))
    insert("event", 30, "g", 2, 900, json.dumps({"message": STEP}))
    insert("region", 9, "g", 4, 30, *where(BEGIN - 10, BEGIN + 90_000, True))
    if copies:
        insert("memory_copy", 1, "g", 5, None, 4096, *where(at(8), at(8) + 500))
    db.commit()
    db.close()
    return path


def write_rpd(path):
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE rocpd_metadata (id, tag, value); INSERT INTO rocpd_metadata VALUES (1, 'schema_version', '2');
        CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string);
        CREATE TABLE rocpd_op (id, gpuId, queueId, sequenceId, completionSignal, start, end, description_id, opType_id);
        CREATE TABLE rocpd_api (id, pid, tid, start, end, apiName_id, args_id);
        CREATE TABLE rocpd_api_ops (id, api_id, op_id);
        CREATE TABLE rocpd_kernelapi (
            api_ptr_id, stream, gridX, gridY, gridZ, workgroupX, workgroupY, workgroupZ, kernelName_id);
        """)
    texts = ["", "KernelExecution", "hipLaunchKernel", "UserMarker", STEP, "CopyHostToDevice", *(d for _, d in KERNELS)]
    db.executemany("INSERT INTO rocpd_string VALUES (?, ?)", list(enumerate(texts, 1)))
    for i in range(3):
        db.execute("INSERT INTO rocpd_api VALUES (?,?,?,?,?,3,1)", (1 + i, PID, TID, at(i), at(i) + 900))
        db.execute("INSERT INTO rocpd_op VALUES (?,0,3,0,'',?,?,?,2)", (1 + i, at(i) + 5_000, at(i) + 7_001, 7 + i))
        db.execute("INSERT INTO rocpd_api_ops VALUES (?,?,?)", (i, 1 + i, 1 + i))
        db.execute("INSERT INTO rocpd_kernelapi VALUES (?,'0x0',4,2,1,256,1,1,?)", (1 + i, 7 + i))
    db.execute("INSERT INTO rocpd_api VALUES (50,?,?,?,?,4,5)", (PID, TID, BEGIN - 10, BEGIN + 90_000))
    db.execute("INSERT INTO rocpd_op VALUES (60,0,3,0,'',?,?,1,6)", (at(8), at(8) + 500))
    db.commit()
    db.close()
    return path


def analyse(path, options=None):
    return importer.analyse_file(path, options or Options())


def kernels(analysis):
    order = [i for i in analysis.trace.device["start"].arg_sort() if analysis.trace.device["kind"][i] == 0]
    device, strings = analysis.trace.device, analysis.trace.strings
    return [(analysis.assignments[analysis.assignment[i]].family, device["start"][i], device["dur"][i],
             strings[device["grid"][i]]) for i in order]  # fmt: skip


WRITERS = {
    "json": lambda p: write_json(p / "908_results.json"),
    "json.gz": lambda p: write_json(p / "908_results.json.gz", gz=True),
    "csv": lambda p: write_csv(p / "908_kernel_trace.csv"),
    "csv old": lambda p: write_csv(p / "908_kernel_trace.csv", old=True),
    "rocpd": lambda p: write_rocpd(p / "results.db"),
    "rocpd tracks": lambda p: write_rocpd(p / "results.db", tracks=True),
    "rocpd without suffix": lambda p: write_rocpd(p / "results.db", suffix=""),
    "rpd": lambda p: write_rpd(p / "t.rpd"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_kernels_linked_and_labelled(tmp_path, kind):
    analysis = analyse(WRITERS[kind](tmp_path))
    expected = [(f, at(i) + 5_000, 2_001, "[4, 2, 1]") for i, f in enumerate(FAMILIES)]
    assert kernels(analysis) == expected
    rows = analysis.trace.device["kind"].to_numpy() == 0
    assert set(analysis.joins.link[rows]) == {"correlation"}
    assert set(analysis.phases.phase[rows]) == {"decode"}


@pytest.mark.parametrize("kind", [k for k in WRITERS if not k.startswith("csv")])
def test_copies_are_kept(tmp_path, kind):
    analysis = analyse(WRITERS[kind](tmp_path))
    copies = analysis.trace.device.filter(analysis.trace.device["kind"] == 1)
    assert copies["dur"].to_list() == [500] and "Memcpy" in analysis.trace.strings[copies["name"][0]]


@pytest.mark.parametrize("write", [write_json, write_csv])
def test_without_api_tables_records_join_their_ranges_by_time_and_say_so(tmp_path, write):
    name = "908_results.json" if write is write_json else "908_kernel_trace.csv"
    analysis = analyse(write(tmp_path / name, apis=False))
    rows = analysis.trace.device["kind"].to_numpy() == 0
    assert set(analysis.joins.link[rows]) == {"time"} and set(analysis.phases.phase[rows]) == {"decode"}
    assert any("by time" in note for note in analysis.trace.meta.notes)


def test_devices_are_named(tmp_path):
    assert analyse(write_json(tmp_path / "a.json")).trace.meta.devices == ["AMD Instinct MI350X"]
    assert analyse(write_rocpd(tmp_path / "a.db")).trace.meta.devices == ["AMD Instinct MI350X"]


def test_several_processes_keep_their_correlation_ids_apart(tmp_path):
    both = rocprofv3()
    other = json.loads(json.dumps(both["rocprofiler-sdk-tool"][0]))
    other["buffer_records"]["hip_api"] = []
    both["rocprofiler-sdk-tool"].append(other)
    (tmp_path / "a.json").write_text(json.dumps(both))
    analysis = analyse(tmp_path / "a.json")
    rows = analysis.trace.device["kind"].to_numpy() == 0
    assert sorted(analysis.joins.link[rows]) == ["correlation"] * 3 + ["none"] * 3


def test_rocprof_v1_has_dispatches_alone(tmp_path):
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute(
        'CREATE TABLE KERN ("Index", "KernelName", "gpu-id", "queue-id", pid, tid, grd, wgr, "BeginNs", "EndNs")'
    )
    for i, (_, name) in enumerate(KERNELS):
        db.execute("INSERT INTO KERN VALUES (?,?,1,0,5,5,1024,256,?,?)",
                   (i, f'"{name} [clone .kd]"', at(i) + 5_000, at(i) + 7_001))  # fmt: skip
    db.commit()
    db.close()
    analysis = analyse(tmp_path / "a.db")
    assert kernels(analysis) == [(f, at(i) + 5_000, 2_001, "[4, 1, 1]") for i, f in enumerate(FAMILIES)]
    assert set(analysis.joins.link) == {"none"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.write_text(json.dumps(rocprofv3())[:-900]), "not a whole rocprofv3 JSON file"),
        (lambda p: p.write_text('{"rocprofiler-sdk-tool": []}'), "no kernel dispatch in it"),
        (
            lambda p: p.write_text('"Domain","Function","Start_Timestamp","End_Timestamp"\n"HIP","x",1,2\n'),
            "kernel_trace.csv",
        ),
        (lambda p: p.write_text('"Kernel_Name","Start_Timestamp","End_Timestamp"\n'), "no dispatch in it"),
    ],
)
def test_files_without_kernels_say_what_to_give(tmp_path, make, said):
    path = tmp_path / "a.json"
    make(path)
    with pytest.raises(UserError, match=said):
        readers.reader_of(path).read(path)


def test_a_thread_trace_database_says_how_to_record(tmp_path):
    path = write_rocpd(tmp_path / "a.db", copies=False)
    db = sqlite3.connect(path)
    db.execute('DELETE FROM "rocpd_kernel_dispatch_00000abc"')
    db.commit()
    db.close()
    with pytest.raises(UserError, match="rocprofv3 --kernel-trace"):
        readers.reader_of(path).read(path)
