"""Recording running programs that use torch and hold no code of a profiler."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from atrex.errors import UserError
from atrex.traces import phases
from atrex.traces.record import attach, inject, payload
from atrex.traces.record.attach import record_pid
from atrex.traces.record.window import Window
from tests.traces.record import small_torch
from tests.traces.record.running import HERE, program, recorder, until
from tests.traces.record.test_inject import attachable

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux" or not attachable(),
    reason="no ptrace on x86-64 Linux",
)
SHORT = Window(0.3)


@contextmanager
def model(name):
    with program(name, file="models.py") as running:
        yield running


@pytest.fixture(scope="module")
def shared():
    with model("product") as running:
        yield running
        assert running.finish()["changed"] == []


@pytest.fixture
def turn(shared):
    """Lets the shared program do something else."""

    def choose(name):
        (shared.folder / "ready").unlink(missing_ok=True)
        (shared.folder / "turn.new").write_text(name)
        (shared.folder / "turn.new").rename(shared.folder / "turn")
        until((shared.folder / "ready").exists, "the program")
        return shared

    yield choose
    choose("product")


@pytest.fixture
def multiplying(shared):
    return shared


@pytest.fixture
def small(tmp_path):
    """A program that is to end, with a small torch that is loaded in no time."""
    packages = str(small_torch.install(tmp_path / "packages"))
    with program("idle", file="models.py", PYTHONPATH=packages) as running:
        yield running


def events(path):
    return json.loads(Path(path).read_text())["traceEvents"]


def names(path, category):
    return [e["name"] for e in events(path) if e.get("cat") == category]


def once_it_records(action):
    return lambda line: action() if line.startswith("recording") else None


def folders():
    return {p for p in Path("/tmp").glob("atrex-record-*") if p.is_dir()}


def test_operators_come_with_their_shapes(multiplying, tmp_path):
    found = record_pid(multiplying.pid, SHORT, tmp_path / "trace.json")
    products = [e for e in events(found.files[0]) if e["name"] == "aten::mm"]
    assert products
    assert all(e["args"]["Input Dims"][:2] == [[32, 32], [32, 32]] for e in products)
    assert any("no device records" in note for note in found.notes)


def test_the_importer_reads_what_was_recorded(multiplying, tmp_path):
    pytest.importorskip("polars")
    from atrex.traces import raw
    from atrex.traces.readers import reader_of

    record_pid(multiplying.pid, SHORT, tmp_path / "trace.json.gz")
    trace = reader_of(tmp_path / "trace.json.gz").read(tmp_path / "trace.json.gz")
    products = [row for row in trace.host.iter_rows(named=True) if trace.strings[row["name"]] == "aten::mm"]
    assert products and all(row["kind"] == raw.OP for row in products)
    assert json.loads(trace.strings[products[0]["dims"]])[:2] == [[32, 32], [32, 32]]


def test_the_window_is_as_long_as_asked(multiplying, tmp_path):
    found = record_pid(multiplying.pid, Window(0.4), tmp_path / "trace.json")
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events(tmp_path / "trace.json") if e.get("cat") == "cpu_op"]
    assert 0.4 <= found.seconds < 2.0
    assert 0.2 < (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e6 < 2.0


def test_frames_come_where_they_are_asked_for(multiplying, tmp_path):
    record_pid(multiplying.pid, SHORT, tmp_path / "plain.json")
    record_pid(multiplying.pid, Window(0.1, stack=True), tmp_path / "stack.json")
    assert not names(tmp_path / "plain.json", "python_function")
    assert any("turn" in name for name in names(tmp_path / "stack.json", "python_function"))


def test_nothing_is_left_behind(multiplying, tmp_path):
    before = folders()
    record_pid(multiplying.pid, Window(0.05), tmp_path / "trace.json")
    assert folders() == before
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_second_recording_at_once_is_refused(multiplying, tmp_path):
    told = threading.Event()
    first = threading.Thread(
        target=record_pid, args=(multiplying.pid, Window(1.0), tmp_path / "one.json", once_it_records(told.set))
    )
    first.start()
    assert told.wait(30)
    with pytest.raises(UserError, match="another recording of it is under way"):
        record_pid(multiplying.pid, SHORT, tmp_path / "two.json")
    first.join()
    assert names(tmp_path / "one.json", "cpu_op")


def test_when_the_recorder_is_killed_the_program_stops_recording_and_cleans_up(multiplying, tmp_path):
    before, (reader, writer) = folders(), os.pipe()
    pid = recorder(
        multiplying.where,
        lambda where: record_pid(
            where.pid, Window(60.0), tmp_path / "lost.json", once_it_records(lambda: os.write(writer, b"x"))
        ),
    )
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: folders() == before, "the folder to be removed")
    record_pid(multiplying.pid, Window(0.05), tmp_path / "next.json")  # nothing is under way any more
    assert not (tmp_path / "lost.json").exists()


def test_a_recorder_that_is_killed_while_the_trace_is_written_leaves_no_file(multiplying, tmp_path):
    """The end of its wait for the program is put off, as if it had been killed there."""
    before, (reader, writer) = folders(), os.pipe()
    slow = "(lambda p: (setattr(p, 'export_kept', p.export_chrome_trace), setattr(p, 'export_chrome_trace', "
    slow += "lambda self, path: (__import__('time').sleep(0.5), p.export_kept(self, path)))))"
    inject_text(multiplying, slow + "(__import__('torch').profiler.profile)")
    pid = recorder(
        multiplying.where,
        lambda where: record_pid(
            where.pid, Window(0.05), tmp_path / "a.json", once_it_records(lambda: os.write(writer, b"x"))
        ),
    )
    os.read(reader, 1)
    until(lambda: any((f / "status.json").exists() and "stopping" in (f / "status.json").read_text()
                      for f in folders() - before), "the end of the window")  # fmt: skip
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: folders() == before, "the folder to be removed")
    undo = "(lambda p: setattr(p, 'export_chrome_trace', p.export_kept))(__import__('torch').profiler.profile)"
    inject_text(multiplying, undo)
    record_pid(multiplying.pid, Window(0.05), tmp_path / "next.json")


def test_a_profiler_of_the_program_itself_is_left_alone(multiplying, tmp_path):
    text = "(lambda torch: {0})(__import__('torch'))"
    inject_text(multiplying, text.format("(setattr(torch, '_own', torch.profiler.profile()), torch._own.start())"))
    with pytest.raises(UserError, match="a profiler already runs in it"):
        record_pid(multiplying.pid, SHORT, tmp_path / "trace.json")
    inject_text(multiplying, text.format("(torch._own.stop(), delattr(torch, '_own'))"))
    record_pid(multiplying.pid, Window(0.05), tmp_path / "trace.json")


def inject_text(running, text):
    done = running.folder / "done"
    inject.inject(running.where, f"{text}; open({str(done)!r}, 'w').close()")
    until(done.exists, "the text")
    done.unlink()


def test_an_output_that_cannot_be_written_leaves_the_trace_where_it_says(multiplying, tmp_path):
    with pytest.raises(UserError, match="the trace is at (.*)") as error:
        record_pid(multiplying.pid, Window(0.05), tmp_path / "none" / "trace.json")
    kept = Path(str(error.value).rpartition("the trace is at ")[2])
    assert names(kept, "cpu_op")
    shutil.rmtree(kept.parent)


def test_operators_of_other_threads_are_recorded(turn, tmp_path):
    running = turn("worker_thread")
    record_pid(running.pid, SHORT, tmp_path / "trace.json")
    threads = {e["tid"] for e in events(tmp_path / "trace.json") if e["name"] == "aten::mm"}
    assert threads and running.pid not in threads


def test_steps_of_a_language_model_are_marked_with_batch_tokens_and_phase(turn, tmp_path):
    running = turn("language_model")
    found = record_pid(running.pid, Window(20.0, steps=25), tmp_path / "trace.json")
    steps = names(tmp_path / "trace.json", "user_annotation")
    assert found.steps == 25 and len(steps) in (25, 26)
    parsed = [phases.parse_step(step) for step in steps]
    prompts = [p for p in parsed if p.phase == "prefill"]
    assert len(prompts) in (5, 6) and len(parsed) - len(prompts) in (19, 20, 21)
    assert (prompts[0].context_requests, prompts[0].context_tokens, prompts[0].context_kv) == (3, 21, 21)
    decodes = [p for p in parsed if p.phase == "decode"]
    assert {(p.generation_requests, p.generation_tokens) for p in decodes} == {(3, 3)}
    assert {p.generation_kv for p in decodes} == {24, 27, 30, 33}


def test_too_few_steps_in_the_window_are_told(multiplying, tmp_path):
    found = record_pid(multiplying.pid, Window(0.2, steps=3), tmp_path / "trace.json")
    assert "the window of 0.2 s ended after 0 of 3 steps" in found.notes


def test_batches_of_vllm_are_marked(turn, tmp_path):
    running = turn("vllm")
    record_pid(running.pid, Window(20.0, steps=3), tmp_path / "trace.json")
    step = phases.parse_step(names(tmp_path / "trace.json", "user_annotation")[0])
    assert (step.phase, step.context_requests, step.context_tokens) == ("mixed", 2, 128)
    assert (step.generation_requests, step.generation_tokens) == (2, 2)


def test_batches_of_sglang_are_marked(turn, tmp_path):
    running = turn("sglang")
    record_pid(running.pid, Window(20.0, steps=4), tmp_path / "trace.json")
    assert set(names(tmp_path / "trace.json", "user_annotation")) == {
        "step[EXTEND bs=16 toks=64]",
        "step[DECODE bs=16]",
    }


@pytest.mark.slow
def test_a_program_that_compiles_is_recorded_without_marks(turn, tmp_path):
    found = record_pid(turn("compiled").pid, SHORT, tmp_path / "trace.json")
    assert "steps are not marked: the program compiles with torch.compile" in found.notes
    assert names(tmp_path / "trace.json", "cpu_op")
    assert not [n for n in names(tmp_path / "trace.json", "user_annotation") if n.startswith(("step ", "execute_"))]


def test_the_children_with_torch_of_a_process_without_it_are_named(small, tmp_path):
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, *sys.argv[1:]]); "
        "print(child.pid, flush=True); child.wait()"
    )
    (tmp_path / "child").mkdir()
    command = [sys.executable, "-c", code, HERE / "models.py", "idle", tmp_path / "child"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "packages")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        child = int(parent.stdout.readline())
        until((tmp_path / "child" / "ready").exists, "the child")
        with pytest.raises(UserError, match=f"no torch is loaded in it; its children with torch: {child}$"):
            record_pid(parent.pid, SHORT, tmp_path / "trace.json")
        (tmp_path / "child" / "stop").touch()


def test_a_main_thread_that_stays_in_native_code_is_told_and_given_up(turn, tmp_path, monkeypatch):
    monkeypatch.setattr(attach, "NOTICE", 0.1)
    told, running = [], turn("in_native_code")
    (running.folder / "blocked").touch()
    until(lambda: "call read" in attach.target.whereabouts(running.pid), "the wait")
    with pytest.raises(UserError, match="waits in the system call read and came to no safe point in 0.5 s"):
        record_pid(running.pid, SHORT, tmp_path / "trace.json", told.append, patience=0.5)
    assert "waits in the system call read; the recording begins when it returns to Python" in told[0]
    (running.folder / "wait").write_text("x")
    record_pid(running.pid, Window(0.05), tmp_path / "trace.json")  # the one that was given up is not under way


def test_a_process_without_torch_is_refused(tmp_path):
    with program("nothing") as running, pytest.raises(UserError, match="no torch is loaded in it"):
        record_pid(running.pid, SHORT, tmp_path / "trace.json")


def test_a_process_that_is_killed_while_it_is_recorded_is_told(small, tmp_path):
    with pytest.raises(UserError, match="ended before its trace was written"):
        record_pid(small.pid, Window(30.0), tmp_path / "trace.json", once_it_records(small.process.kill))


def test_a_program_that_ends_within_the_window_hands_over_what_there_is(small, tmp_path):
    end = (small.folder / "stop").touch
    found = record_pid(small.pid, Window(60.0), tmp_path / "trace.json", once_it_records(end))
    assert events(tmp_path / "trace.json") == []
    assert small.finish()["turns"]
    assert "the program ended within the window" in found.notes


CAPTURING = "setattr(__import__('torch').cuda, 'capturing', {})"


def test_the_capture_of_a_graph_is_not_disturbed_by_a_start(small, tmp_path):
    inject_text(small, CAPTURING.format(True))
    with pytest.raises(UserError, match="it is capturing a CUDA graph right now"):
        record_pid(small.pid, SHORT, tmp_path / "trace.json")


def test_the_capture_of_a_graph_is_not_disturbed_by_an_end(small, tmp_path):
    def capture_for_a_while():
        inject_text(small, CAPTURING.format(True))
        threading.Timer(0.5, inject_text, (small, CAPTURING.format(False))).start()

    found = record_pid(small.pid, Window(0.2), tmp_path / "trace.json", once_it_records(capture_for_a_while))
    assert found.seconds > 0.5


def test_an_interrupt_that_arrives_in_the_recorder_s_code_reaches_the_program():
    said = []
    recording = SimpleNamespace(say=lambda state, **more: said.append((state, more)))

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        payload.guarded(recording, interrupted)
        for _ in range(1000):
            pass
    assert said == [("failed", {"reason": "KeyboardInterrupt: "})]


def test_an_error_in_the_recorder_s_code_is_told_and_does_not_reach_the_program(multiplying, tmp_path):
    running = multiplying
    inject_text(running, "__import__('sys').modules['torch.profiler'].profile.start_kept = "
                         "__import__('torch').profiler.profile.start")  # fmt: skip
    inject_text(running, "__import__('torch').profiler.profile.start = lambda self: 1 / 0")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        record_pid(running.pid, SHORT, tmp_path / "trace.json")
    inject_text(running, "(lambda p: setattr(p, 'start', p.start_kept))(__import__('torch').profiler.profile)")
    record_pid(running.pid, Window(0.05), tmp_path / "trace.json")


def test_with_python_3_14_its_own_way_is_used(multiplying, tmp_path, monkeypatch):
    """The script that `sys.remote_exec` is given does what the injected text does; here the injector runs it."""

    def remote_exec(pid, script):
        assert pid == multiplying.pid
        inject.inject(multiplying.where, f"exec(open({script!r}).read())")

    from dataclasses import replace

    monkeypatch.setattr(attach.target, "inspect", lambda pid: replace(multiplying.where, version=attach.REMOTE_EXEC))
    monkeypatch.setattr(attach.sys, "version_info", (*attach.REMOTE_EXEC, 0))
    monkeypatch.setattr(attach.sys, "remote_exec", remote_exec, raising=False)
    found = record_pid(multiplying.pid, SHORT, tmp_path / "trace.json")
    assert names(found.files[0], "cpu_op") and "paused_s" not in found.details
