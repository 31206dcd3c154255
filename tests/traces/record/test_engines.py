"""Serving engines' own profilers, against servers that speak their protocols."""

import json
import time
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.traces.record import engines
from atrex.traces.record.engines import detect, record_url
from atrex.traces.record.window import Window
from tests.traces.record.servers import TRACE, Server, Sglang, Vllm, serving

SHORT = Window(0.2)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(engines, "QUIET", 0.2)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "traces").mkdir()
    return tmp_path / "traces"


def test_vllm_is_profiled_for_the_window_and_its_trace_fetched(folder, tmp_path):
    server = Vllm(folder)
    with serving(server) as url:
        began = time.monotonic()
        found = record_url(url, SHORT, tmp_path / "trace.json", folder=folder)
    assert time.monotonic() - began >= 0.2
    assert json.loads((tmp_path / "trace.json").read_text()) == TRACE
    assert server.paths == ["/v1/models", "/start_profile", "/stop_profile"]
    assert found.details["engine"] == "vllm"


def test_vllm_counts_the_steps_itself(folder, tmp_path):
    server = Vllm(folder)
    with serving(server) as url:
        record_url(url, Window(0.2, steps=7), tmp_path / "trace.json", folder=folder)
    assert server.body_of("/start_profile") == {"max_iterations": 7}


def test_vllm_without_a_profiler_is_told_the_flag(tmp_path):
    server = Vllm()
    server.configured = False
    with serving(server) as url, pytest.raises(UserError, match="--profiler-config .*torch_profiler_dir.*--pid"):
        record_url(url, SHORT, tmp_path / "trace.json")
    assert "/stop_profile" not in server.paths


def test_where_the_trace_cannot_be_reached_it_is_said_where_it_is(folder, tmp_path):
    with serving(Vllm(folder)) as url:
        found = record_url(url, SHORT, tmp_path / "trace.json")
    assert not found.files
    assert "torch_profiler_dir of its --profiler-config; see --trace-dir" in found.notes[0]


def test_traces_that_were_there_before_are_not_taken(folder, tmp_path):
    (folder / "old.pt.trace.json").write_text("{}")
    with serving(Vllm(folder)) as url:
        assert len(record_url(url, SHORT, tmp_path / "trace.json", folder=folder).files) == 1
    assert (folder / "old.pt.trace.json").exists()


def test_sglang_gets_a_folder_and_asks_for_shapes(tmp_path):
    server = Sglang()
    with serving(server) as url:
        found = record_url(url, SHORT, tmp_path / "trace.json.gz")
    body = server.body_of("/start_profile")
    assert body["record_shapes"] is True and body["with_stack"] is False and body["activities"] == ["CPU", "GPU"]
    assert found.files == [tmp_path / "trace.json.gz"]
    assert not Path(body["output_dir"]).exists()


def test_sglang_ends_by_itself_after_its_steps(tmp_path):
    server = Sglang()
    with serving(server) as url:
        began = time.monotonic()
        record_url(url, Window(30.0, steps=5, stack=True), tmp_path / "trace.json")
    assert server.body_of("/start_profile")["num_steps"] == 5
    assert server.body_of("/start_profile")["with_stack"] is True
    assert time.monotonic() - began < 10


def test_every_rank_s_trace_is_fetched(tmp_path):
    with serving(Sglang(ranks=3)) as url:
        found = record_url(url, SHORT, tmp_path / "trace.json")
    assert [path.name for path in found.files] == ["trace.json", "trace.1.json", "trace.2.json"]


def test_a_profiler_that_runs_already_is_told_in_the_engine_s_words(tmp_path):
    server = Sglang()
    server.profiling = True
    with serving(server) as url, pytest.raises(UserError, match="answered 400 to /start_profile: Profiling is already"):
        record_url(url, SHORT, tmp_path / "trace.json")


def test_a_server_that_writes_elsewhere_is_waited_for_and_given_up(folder, tmp_path, monkeypatch):
    """As one in a container, whose file system is not ours."""
    monkeypatch.setattr(engines, "WRITING", 0.5)
    monkeypatch.setattr(engines, "NOTICE", 0.1)
    server, told = Sglang(), []
    monkeypatch.setattr(server, "finish", lambda: None)
    with serving(server) as url:
        found = record_url(url, SHORT, tmp_path / "trace.json", told.append)
    written_to = server.body_of("/start_profile")["output_dir"]
    assert not found.files and written_to in found.notes[0]
    assert told[-1] == f"waiting for the trace in {written_to}"
    assert not Path(written_to).exists()


def test_the_profiler_is_stopped_when_we_are_interrupted(folder, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engines, "_hold", interrupted)
    server = Vllm(folder)
    with serving(server) as url, pytest.raises(KeyboardInterrupt):
        record_url(url, Window(60.0), tmp_path / "trace.json", folder=folder)
    assert server.paths[-1] == "/stop_profile" and not server.profiling


@pytest.mark.parametrize(
    ("path", "content", "name"),
    [("/get_model_info", '{"model_path": "m"}', "sglang"), ("/version", '{"version": "0.33.0"}', "vllm")],
)
def test_an_engine_is_known_where_its_list_of_models_says_nothing(path, content, name):
    server = Server()
    server.refuse = {"/v1/models": (500, "{}"), path: (200, content)}
    with serving(server) as url:
        assert detect(url).name == name


def test_a_server_of_another_kind_is_refused():
    with serving(Server()) as url, pytest.raises(UserError, match="neither vLLM nor SGLang answers there"):
        detect(url)


def test_a_server_that_asks_for_a_key_gets_it(folder, tmp_path, monkeypatch):
    server = Vllm(folder)
    server.key = "secret"
    with serving(server) as url:
        with pytest.raises(UserError, match="asks for a key: set ATREX_ENGINE_KEY"):
            detect(url)
        monkeypatch.setenv("ATREX_ENGINE_KEY", "secret")
        assert record_url(url, SHORT, tmp_path / "trace.json", folder=folder).files


def test_nobody_answers():
    with serving(Server()) as url:
        pass
    with pytest.raises(UserError, match="no answer"):
        detect(url)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_an_address_that_is_none(url):
    with pytest.raises(UserError, match="expected http://host:port"):
        detect(url)
