"""`atrex trace`, as a user meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from tests.traces import scene
from tests.traces.test_dataset import put
from tests.traces.test_graphs import capture, replay


def run(*arguments):
    result = CliRunner().invoke(app, ["trace", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    built = scene.serving()
    built.step("execute_context_2(48)_generation_16(16)", 64)
    built.call(["mine::op"], "my_company_kernel", 7_000, "MyModule_1", frame="mine/model.py(3): forward")
    run("import", put(folder, "a.json", built), "--out", folder / "out", "--app", "chat", "--jobs", 1)
    return folder / "out"


def test_info_says_what_a_trace_is_and_what_it_lacks(tmp_path):
    out = run("info", put(tmp_path, "a.json", replay()))
    assert "kineto" in out and "NVIDIA H200" in out and "2 replays, 0 joined" in out
    assert "lacks: 100.0% of device time is in graph replays without their capture" in out
    document = json.loads(run("info", tmp_path / "a.json", "--json"))[0]
    assert document["shares"]["linked"] == 0 and document["links"] == {"graph": 1.0}


def test_info_joins_captures_given_with_the_replays(tmp_path):
    files = [put(tmp_path, "replay.json", replay()), put(tmp_path, "capture.json", capture())]
    out = run("info", *files)
    assert out.index("replay.json:") < out.index("capture.json:") and "2 replays, 2 joined" in out


def test_top_adds_up_to_the_whole(data):
    document = json.loads(run("top", data, "--json"))
    assert sum(r["share"] for r in document["rows"]) == pytest.approx(1)
    assert sum(r["ns"] for r in document["rows"]) == pytest.approx(document["total_ns"])
    by = {r["family"]: r for r in document["rows"]}
    assert by["rms_norm"]["operator"] == "rms_norm" and by["gemm"]["operator"] is None
    assert not by["other"]["mapped"] and document["mapped"] == pytest.approx(1 - by["other"]["share"])


@pytest.mark.parametrize("by", ["family", "operator", "kernel", "op", "module", "phase"])
def test_top_by_anything_has_the_same_total(data, by):
    document = json.loads(run("top", data, "--by", by, "--json"))
    assert document["total_ns"] == pytest.approx(4 * sum(d for *_, d in scene.LAYER) + 7_000)


def test_mixed_steps_are_kept_apart_or_split_and_the_output_says_which(data):
    step = sum(d for *_, d in scene.LAYER)
    kept = run("top", data, "--phase", "prefill")
    assert "kept apart as phase mixed" in kept
    split = json.loads(run("top", data, "--phase", "prefill", "--mixed", "split", "--json"))
    assert split["total_ns"] == pytest.approx(step + (step + 7_000) * 48 / 64)
    assert "split by their tokens" in run("top", data, "--phase", "decode", "--mixed", "split")
    phases = [json.loads(run("top", data, "--phase", p, "--mixed", "split", "--json")) for p in ("prefill", "decode")]
    assert sum(p["total_ns"] for p in phases) == pytest.approx(4 * step + 7_000)


def test_show_says_what_a_kernel_served(data):
    out = run("show", data, "--kernel", "rms_norm")
    assert "vllm::rms_norm_kernel" in out and "_C::rms_norm" in out and "RMSNorm" in out
    assert "[[512, 4096], [4096]]" in out and "prefill" in out and "family    rms_norm (rule vllm" in out


def test_unmapped_gives_what_a_rule_would_need(data):
    out = run("unmapped", data)
    for expected in ("my_company_kernel", "mine::op", "MyModule", "mine/model.py(3): forward"):
        assert expected in out


def test_inclusive_time_counts_overlaps_twice(tmp_path):
    built = scene.Scene()
    built.step("step[DECODE bs=16]")
    kernels = [e for e in built.events if e["cat"] == "kernel"]
    kernels[1]["ts"] = kernels[0]["ts"] + kernels[0]["dur"] - 301
    run("import", put(tmp_path, "a.json", built), "--out", tmp_path / "out", "--jobs", 1)
    exclusive, inclusive = (
        json.loads(run("top", tmp_path / "out", "--json", *flag))["total_ns"] for flag in ([], ["--inclusive"])
    )
    assert inclusive - exclusive == pytest.approx(301)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("top", "OUT", "--by", "colour"), "--by colour: expected one of family"),
        (("top", "OUT", "--phase", "lunch"), "--phase lunch: expected one of prefill"),
        (("top", "OUT", "--mixed", "stir"), "--mixed stir"),
        (("top", "OUT", "--app", "nobody"), "no trace of application 'nobody': expected one of chat"),
        (("top", "nowhere"), "nowhere: no data set of traces"),
        (("show", "OUT", "--kernel", "("), "not a regular expression"),
        (("show", "OUT", "--kernel", "zzz"), "no kernel matches 'zzz'"),
        (("info", "nowhere.json"), "nowhere.json: No such file"),
        (("info", "EMPTY"), "the file is empty"),
        (("info", "TEXT"), "no trace format that Atrex reads: expected one of"),
        (("info", "x.nsys-rep"), "nsys export --type sqlite x.nsys-rep"),
        (("import", "TEXT", "--out", "D", "--framework", "vllm"), "expected NAME==VERSION"),
        (
            ("import", "TEXT", "--out", "D", "--framework", "nothing==1.0"),
            "no rules for nothing: expected one of aiter",
        ),
        (("import", "TEXT", "--out", "D", "--phase", "x"), "--phase x"),
        (("import", "TEXT", "TEXT", "--out", "D", "--host", "TEXT"), "expected one FILE, not 2"),
    ],
)
def test_bad_input_is_one_line(data, tmp_path, arguments, said):
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "text.txt").write_text("hello")
    names = {"OUT": data, "EMPTY": tmp_path / "empty.json", "TEXT": tmp_path / "text.txt", "D": tmp_path / "d"}
    with pytest.raises(UserError) as error:
        run(*(names.get(a, a) for a in arguments))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_the_command_ends_with_status_2_and_one_line():
    command = [sys.executable, "-m", "atrex.cli.main", "trace", "info", "nowhere.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr == "error: nowhere.json: No such file or directory\n"


def test_a_trace_without_durations_is_told_and_does_not_stop_anything(tmp_path):
    built = scene.serving()
    for event in built.events:
        event["dur"] = 0
    path = put(tmp_path, "a.json", built)
    assert "every device record lasts 0 ns" in run("info", path)
    run("import", path, "--out", tmp_path / "out", "--jobs", 1)
    assert json.loads(run("top", tmp_path / "out", "--json"))["total_ns"] == 0
    run("top", tmp_path / "out", "--limit", 1)
