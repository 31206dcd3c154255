"""Kineto files of every dialect give the same records; damaged ones give what is left, and say what is not."""

import json

import pytest

from atrex.errors import UserError
from atrex.traces.readers import kineto
from tests.traces import big, scene

KERNELS = 3 * scene.KERNELS_A_STEP


def read(tmp_path, data, name="t.json", **options):
    path = tmp_path / name
    path.write_bytes(data)
    return kineto.read(path, **options)


def records(trace):
    """Device records as (name, start, dur, correlation), in order."""
    frame = trace.device.sort("start")
    return [
        (trace.strings[n], s, d, c) for n, s, d, c in frame.select("name", "start", "dur", "correlation").iter_rows()
    ]


def expected(offset=0, unit=1):
    kernels = sorted((e for e in scene.serving().events if e["cat"] == "kernel"), key=lambda e: e["ts"])
    return [
        (e["name"], (e["ts"] + offset) // unit * unit, e["dur"] // unit * unit, e["args"]["correlation"])
        for e in kernels
    ]


@pytest.mark.parametrize("dialect", [d for d in scene.DIALECTS if d not in ("absolute", "integer", "torch_1_8")])
@pytest.mark.parametrize("gz", [False, True])
def test_every_dialect_gives_the_same_records(tmp_path, dialect, gz):
    data = scene.render(scene.serving().events, dialect)
    trace = read(tmp_path, scene.compressed(data) if gz else data)
    assert records(trace) == expected()
    assert not trace.meta.loss
    assert trace.meta.counts["op"] == 15 and trace.meta.counts["frame"] == 12


@pytest.mark.parametrize("dialect", ["kineto", "header_last", "header_split"])
def test_header_keys_are_found_wherever_they_stand(tmp_path, dialect):
    meta = read(tmp_path, scene.render(scene.serving().events, dialect)).meta
    assert (meta.rank, meta.world_size, meta.base_ns, meta.devices) == (3, 8, scene.BASE_NS, ["NVIDIA H200"])


def test_absolute_times_of_nineteen_digits_keep_their_nanoseconds(tmp_path):
    assert records(read(tmp_path, scene.render(scene.serving().events, "absolute"))) == expected(scene.BASE_NS)


@pytest.mark.parametrize("dialect", ["integer", "torch_1_8"])
def test_old_files_in_whole_microseconds(tmp_path, dialect):
    assert records(read(tmp_path, scene.render(scene.serving().events, dialect))) == expected(scene.BASE_NS, 1000)


def test_torch_1_8_threads_and_operands_are_read(tmp_path):
    trace = read(tmp_path, scene.render(scene.serving().events, "torch_1_8"))
    assert set(trace.device["stream"]) == {7}
    op = trace.host.filter(trace.host["dims"] >= 0).row(0, named=True)
    assert json.loads(trace.strings[op["dims"]]) == [[512, 4096], [4096]]


def test_integers_beyond_64_bits_and_unknown_keys_do_not_disturb(tmp_path):
    events = scene.serving().events
    events[0]["args"]["Comms Id"] = 10159970886766084423
    events[1]["args"]["huge"] = 2**80
    assert records(read(tmp_path, scene.render(events))) == expected()


def test_metadata_flows_and_marks_are_counted_but_are_no_records(tmp_path):
    events = scene.serving().events
    events += [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 422,
            "tid": 0,
            "ts": 0,
            "dur": 0,
            "args": {"name": "VLLM::EngineCore"},
        },
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 422, "tid": 422, "ts": 0, "dur": 0},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "Traces", "tid": "x", "ts": 0, "dur": 0},
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch",
            "ts": 0,
            "dur": 5,
        },
    ]
    trace = read(tmp_path, scene.render(events))
    assert records(trace) == expected()
    assert trace.meta.counts["s:ac2g"] == trace.meta.counts["i"] == trace.meta.counts["X:Trace"] == 1
    assert trace.meta.processes == {"422": "VLLM::EngineCore"}


def test_an_unescaped_quote_in_a_frame_costs_no_event(tmp_path):
    data = scene.render(scene.serving().events).replace(b"nn.Module: RMSNorm_0", b'f"{x}"(3): <string "RMSNorm_0">', 2)
    trace = read(tmp_path, data)
    assert records(trace) == expected()
    assert trace.meta.loss.repaired == 2 and trace.meta.loss.lost == 0


@pytest.mark.parametrize(
    "bad",
    [b"a\x01b\tc\nd", rb"C:\Users\qwen\model.py(3): forward", b"caf\xe9.py(1): f"],
    ids=["control", "backslash", "latin1"],
)
def test_malformed_names_are_mended(tmp_path, bad):
    data = scene.render(scene.serving().events).replace(b"nn.Module: Linear_1", bad, 1)
    trace = read(tmp_path, data)
    assert records(trace) == expected()
    assert trace.meta.loss.repaired == 1 and trace.meta.loss.lost == 0


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-nan", b"-inf"])
def test_numbers_that_json_does_not_know_are_mended(tmp_path, number):
    data = scene.render(scene.serving().events).replace(
        b'"External id": 1', b'"est. achieved occupancy %": ' + number, 1
    )
    trace = read(tmp_path, data)
    assert records(trace) == expected()
    assert trace.meta.loss.lost == 0


def test_a_destroyed_event_is_counted_and_its_neighbours_survive(tmp_path):
    data = scene.render(scene.serving().events)
    at = data.index(b'"nvjet')
    trace = read(tmp_path, data[: at - 8] + b"}}}{{{][" + data[at + 30 :])
    kept = records(trace)
    assert len(kept) == KERNELS - 1 and set(kept) < set(expected())
    assert trace.meta.loss.lost == 1 and trace.meta.loss.lost_bytes > 0 and trace.meta.loss.examples


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("gz", [False, True])
def test_a_file_cut_short_gives_everything_before_the_cut(tmp_path, share, gz):
    data = scene.render(scene.serving().events)
    cut = data[: int(len(data) * share)]
    whole = [e for e in scene.serving().events if scene._text(e, 0, 2).encode() in cut]
    if gz:
        packed = scene.compressed(data)
        # What a decompressor gets out of a prefix of the stream is not a round share of the text.
        trace = read(tmp_path, packed[: int(len(packed) * share)])
        assert trace.meta.loss.truncated and any("gzip" in note for note in trace.meta.notes)
        assert records(trace) == expected()[: len(trace.device)]
        return
    trace = read(tmp_path, cut)
    assert trace.meta.loss.truncated
    assert sum(trace.meta.counts.values()) == len(whole)


def test_a_whole_file_is_not_called_truncated(tmp_path):
    assert not read(tmp_path, scene.compressed(scene.render(scene.serving().events))).meta.loss.truncated


def test_events_may_hold_lists_of_objects(tmp_path):
    events = scene.serving().events
    events[3]["args"]["extra"] = [{"ph": "nested"}, {"name": "nested"}, {"cat": 1}]
    trace = read(tmp_path, scene.render(events))
    assert records(trace) == expected() and trace.meta.loss.lost == 0


def test_processes_that_decode_in_parallel_agree_with_one(tmp_path, monkeypatch):
    monkeypatch.setattr("atrex.traces.readers.kineto_stream.PARALLEL_FROM", 0)
    monkeypatch.setattr("atrex.traces.readers.kineto_pieces.PIECE", 1 << 16)
    path = tmp_path / "big.json"
    counts = big.write(path, 4000, layers=4)
    one = kineto.read(path, jobs=1)
    two = kineto.read(path, jobs=2)
    packed = tmp_path / "big.json.gz"
    packed.write_bytes(scene.compressed(path.read_bytes()))
    assert records(one) == records(two) == records(kineto.read(packed, jobs=2))
    assert len(one.device) == counts["kernel"] and one.meta.counts["frame"] == counts["python_function"]
    names = {one.strings[n] for n in one.host["name"]}
    assert names == {two.strings[n] for n in two.host["name"]}


def test_progress_ends_at_the_file_size(tmp_path):
    seen = []
    path = tmp_path / "big.json"
    big.write(path, 30_000, layers=4)
    kineto.read(path, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 2 and seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schemaVersion": 1, "notEvents": []}', "no traceEvents"),
        (b'{"traceEvents": []}', "empty"),
        (b'{"traceEvents": [}}}}', "empty or unreadable"),
    ],
)
def test_files_without_events_are_refused(tmp_path, content, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, content)


def test_numbers_beyond_all_sense_are_taken_as_absent(tmp_path):
    events = scene.serving().events
    kernel = next(e for e in events if e["cat"] == "kernel")
    kernel["args"]["correlation"] = 10**25
    data = scene.render(events).replace(b'"dur": 2.301', b'"dur": 1e300', 1)
    trace = read(tmp_path, data)
    assert len(trace.device) == KERNELS and trace.device["correlation"].min() == -1
    assert trace.device["dur"].min() >= 0
