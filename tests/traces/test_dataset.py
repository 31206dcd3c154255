"""A data set on disk: what is in it, what survives an interruption, what is replaced."""

import json

import polars as pl
import pytest

from atrex.errors import UserError
from atrex.traces import dataset, importer
from atrex.traces.pipeline import Options
from tests.traces import scene
from tests.traces.test_graphs import BODY, capture, replay


def put(tmp_path, name, built=None, dialect="kineto"):
    path = tmp_path / name
    path.write_bytes(scene.render((built or scene.serving()).events, dialect))
    return path


def test_tables_point_at_each_other(tmp_path):
    importer.import_files([put(tmp_path, "a.json")], tmp_path / "out", Options(app="chat"), jobs=1)
    data = dataset.open_dataset(tmp_path / "out")
    kernels, launches, host = (data.table(n).collect() for n in ("kernels", "launches", "host_ops"))
    joined = kernels.join(launches, left_on="launch", right_on="id", suffix="_launch").join(
        host, left_on="host_op", right_on="id", suffix="_host"
    )
    assert len(joined) == 12 and (joined["name_host"] == joined["op"]).all()
    assert (joined["start_ns_host"] <= joined["start_ns_launch"]).all()
    assert (joined["start_ns_launch"] < joined["start_ns"]).all()
    parents = joined.join(host, left_on="parent", right_on="id", suffix="_parent")
    assert set(parents.filter(pl.col("op") == "_C::rms_norm")["name_parent"]) == {"nn.Module: RMSNorm_0"}
    steps = kernels.join(data.table("annotations").collect(), left_on="step", right_on="id", suffix="_step")
    assert len(steps) == 12 and (steps["phase"] == steps["phase_step"]).all()
    assert set(kernels["app"]) == {"chat"} and set(kernels["rank"]) == {3}
    contexts = data.table("contexts").collect()
    assert contexts.filter(pl.col("id") == kernels["context"][0])["ops"][0].to_list() == [kernels["op"][0]]


def test_a_file_imported_again_replaces_its_trace(tmp_path):
    path = put(tmp_path, "a.json")
    for _ in range(2):
        importer.import_files([path], tmp_path / "out", Options(), jobs=1)
    assert list(dataset.open_dataset(tmp_path / "out").summaries) == ["a"]


def test_files_of_one_name_are_kept_apart(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    files = [put(tmp_path / "x", "a.trace.json"), put(tmp_path / "y", "a.trace.json")]
    importer.import_files(files, tmp_path / "out", Options(), jobs=1)
    assert sorted(dataset.open_dataset(tmp_path / "out").summaries) == ["a", "a-2"]


def test_a_trace_without_its_summary_does_not_count(tmp_path):
    files = [put(tmp_path, "a.json"), put(tmp_path, "b.json")]
    importer.import_files(files, tmp_path / "out", Options(), jobs=1)
    (tmp_path / "out" / "traces" / "b.json").unlink()
    assert len(dataset.open_dataset(tmp_path / "out").table("kernels").collect()) == 12


def test_a_bad_file_does_not_keep_the_others_out(tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    results = importer.import_files([bad, put(tmp_path, "a.json")], tmp_path / "out", Options(), jobs=1)
    assert results[0].error is not None and "bad.json" in results[0].error and results[1].summary is not None


def test_several_files_in_processes_of_their_own(tmp_path):
    files = [put(tmp_path, f"{i}.json") for i in range(3)]
    seen = []
    importer.import_files(files, tmp_path / "out", Options(), jobs=2, done=lambda r: seen.append(r.trace))
    assert sorted(seen) == ["0", "1", "2"]
    assert len(dataset.open_dataset(tmp_path / "out").table("kernels").collect()) == 36


@pytest.mark.parametrize("names", [("capture.json", "replay.json"), ("a.json", "b.json")])
def test_captures_explain_replays_whatever_the_files_are_called(tmp_path, names):
    files = [put(tmp_path, names[1], replay()), put(tmp_path, names[0], capture())]
    importer.import_files(files, tmp_path / "out", Options(), jobs=1)
    data = dataset.open_dataset(tmp_path / "out")
    kernels = data.table("kernels", data.serving()).collect()
    assert kernels.sort("start_ns")["op"].to_list() == [op for op, _ in BODY] * 2
    there = data.table("launches", [names[0].removesuffix(".json")]).collect()
    assert set(kernels["capture_launch"]) <= set(there["id"])


def test_time_in_captures_is_no_serving_time(tmp_path):
    importer.import_files([put(tmp_path, "c.json", capture())], tmp_path / "out", Options(), jobs=1)
    assert dataset.open_dataset(tmp_path / "out").serving() == []


def test_ranges_that_launch_nothing_are_left_out(tmp_path):
    built = scene.Scene()
    built.add("cpu_op", "aten::view", built.host, 50)
    built.host += 100
    built.step("step[DECODE bs=16]")
    importer.import_files([put(tmp_path, "a.json", built)], tmp_path / "out", Options(), jobs=1)
    host = dataset.open_dataset(tmp_path / "out").table("host_ops").collect()
    assert "aten::view" not in set(host["name"]) and "aten::mm" in set(host["name"])


@pytest.mark.parametrize("content", ["file", "folder", "version"])
def test_folders_that_are_no_data_set_are_refused(tmp_path, content):
    out = tmp_path / "out"
    if content == "file":
        out.write_text("x")
    else:
        out.mkdir()
        (out / ("atrex-traces.json" if content == "version" else "x")).write_text('{"version": 99}')
    with pytest.raises(UserError, match="out"):
        importer.import_files([put(tmp_path, "a.json")], out, Options(), jobs=1)


def test_the_summary_says_what_was_lost(tmp_path):
    path = put(tmp_path, "a.json")
    path.write_bytes(path.read_bytes()[:-2000])
    importer.import_files([path], tmp_path / "out", Options(), jobs=1)
    summary = json.loads((tmp_path / "out" / "traces" / "a.json").read_text())
    assert summary["loss"]["truncated"] and summary["records"]["kernel"] >= 10
