"""Starting programs under the profiler."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.traces.record.launch import OTHER, PYTHON, SHELL, kind_of, record_command
from atrex.traces.record.window import Window
from tests.traces.record import small_torch

WORK = "import time, torch\nend = time.monotonic() + {}\nwhile time.monotonic() < end: time.sleep(0.001)\n"
DEVICE = any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd"))
needs_no_device = pytest.mark.skipif(DEVICE, reason="with a GPU the window begins when it is initialized")


@pytest.fixture
def torch(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(small_torch.install(tmp_path / "packages")))


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def options(path):
    return json.loads(Path(path).read_text())["options"]


@needs_no_device
def test_operators_of_a_program_come_with_their_shapes(tmp_path):
    code = (
        "import sys, time, torch\n"
        "a, seen, end = torch.ones(8, 8), False, time.monotonic() + 20\n"
        "while time.monotonic() < end:\n"
        "    a @ a; time.sleep(0.001)\n"
        "    now = '_atrex_recording' in sys.modules\n"
        "    if seen and not now: break\n"
        "    seen = seen or now\n"
    )
    found = record_command([sys.executable, "-c", code], Window(0.3), tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    products = [e for e in events if e["name"] == "aten::mm"]
    assert products and products[0]["args"]["Input Dims"] == [[8, 8], [8, 8]]
    assert 0.3 <= found.seconds < 10
    assert found.details["returned"] == 0


@needs_no_device
def test_the_program_is_given_its_arguments_and_runs_to_its_own_end(torch, tmp_path):
    program = script(
        tmp_path / "a.py", WORK.format(0.5) + "import sys; open(sys.argv[1], 'w').write('done'); sys.exit(7)"
    )
    found = record_command([sys.executable, program, str(tmp_path / "end")], Window(0.1), tmp_path / "trace.json")
    assert (tmp_path / "end").read_text() == "done"
    assert found.details["returned"] == 7
    assert f"{sys.executable} ended with status 7" in found.notes


@needs_no_device
def test_a_program_that_ends_within_the_window_hands_over_its_trace(torch, tmp_path):
    found = record_command([sys.executable, "-c", WORK.format(0.3)], Window(60.0), tmp_path / "trace.json")
    assert found.files == [tmp_path / "trace.json"]
    assert "the program ended within the window" in found.notes


@needs_no_device
def test_stacks_are_recorded_where_they_are_asked_for(torch, tmp_path):
    command = [sys.executable, "-c", WORK.format(0.3)]
    for stack in (True, False):
        record_command(command, Window(0.1, stack=stack), tmp_path / "trace.json")
        assert options(tmp_path / "trace.json")["with_stack"] == str(stack)


@needs_no_device
def test_a_delay_leaves_the_beginning_out(torch, tmp_path):
    record_command([sys.executable, "-c", WORK.format(0.6)], Window(0.1), tmp_path / "trace.json", delay=0.2)
    with pytest.raises(UserError, match="no Python process of it imported torch for as long as --delay says"):
        record_command([sys.executable, "-c", WORK.format(0.3)], Window(0.1), tmp_path / "trace.json", delay=5.0)


@needs_no_device
def test_every_process_with_torch_is_recorded_and_the_largest_trace_is_the_one_asked_for(torch, tmp_path):
    child = "import torch; torch.padding = 'x' * 9999\n" + WORK.format(0.4)
    code = f"import subprocess, sys, torch\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    found = record_command([sys.executable, "-c", code], Window(0.1), tmp_path / "trace.json")
    assert found.files == [tmp_path / "trace.json", tmp_path / "trace.1.json"]
    assert found.files[0].stat().st_size > 9999 > found.files[1].stat().st_size


@needs_no_device
def test_a_forked_child_is_recorded_too(torch, tmp_path):
    code = f"import os\nif os.fork(): os.wait()\nelse:\n    exec({WORK.format(0.4)!r})\n"
    assert len(record_command([sys.executable, "-c", code], Window(0.1), tmp_path / "trace.json").files) == 1


@needs_no_device
def test_a_shell_script_that_starts_python_is_recorded(torch, tmp_path):
    (tmp_path / "a.py").write_text(WORK.format(0.4))
    started = script(tmp_path / "start", f"#!/bin/sh\nexec {sys.executable} {tmp_path}/a.py\n")
    assert record_command([started], Window(0.1), tmp_path / "trace.json").files


@needs_no_device
def test_a_sitecustomize_that_was_there_is_still_loaded(torch, tmp_path):
    (tmp_path / "packages" / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'loaded'")
    code = WORK.format(0.3) + f"import os; open({str(tmp_path / 'site')!r}, 'w').write(os.environ.get('SITE', 'not'))"
    record_command([sys.executable, "-c", code], Window(0.1), tmp_path / "trace.json")
    assert (tmp_path / "site").read_text() == "loaded"


@needs_no_device
def test_nothing_is_left_behind(torch, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    record_command([sys.executable, "-c", WORK.format(0.3)], Window(0.1), tmp_path / "trace.json")
    assert not list((tmp_path / "scratch").iterdir())


def test_a_program_that_imports_no_torch_is_told(tmp_path):
    with pytest.raises(UserError, match="ended with status 0; nothing was recorded: no Python process"):
        record_command([sys.executable, "-c", "pass"], Window(0.1), tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-Iu", "-uI"])
def test_a_python_that_would_not_load_the_recorder_is_refused(option, tmp_path):
    with pytest.raises(UserError, match=r"python -[IES] .*: leave it out"):
        record_command([sys.executable, option, "-c", "pass"], Window(0.1), tmp_path / "trace.json")


@pytest.mark.parametrize(
    "words", [["-u", "a.py", "-I"], ["-c", "pass", "-I"], ["-W", "ignore", "a.py"], ["-XI", "a.py"]]
)
def test_options_of_the_program_are_not_those_of_python(words):
    assert kind_of([sys.executable, *words]) == PYTHON


@pytest.mark.parametrize(
    ("first_line", "kind"),
    [
        ("#!/usr/bin/env python3", PYTHON), ("#!/usr/bin/env -S python3 -u", PYTHON), ("#!/opt/bin/python3.12", PYTHON),
        ("#!/bin/bash", SHELL), ("#! /usr/bin/env bash", SHELL), ("#!/usr/bin/perl", OTHER), ("#!/usr/bin/node", OTHER),
    ],
)  # fmt: skip
def test_what_a_script_is_its_first_line_tells(first_line, kind, tmp_path):
    assert kind_of([script(tmp_path / "run", f"{first_line}\n")]) == kind


def test_a_script_for_an_isolated_python_is_refused(tmp_path):
    with pytest.raises(UserError, match="python -I"):
        kind_of([script(tmp_path / "run", f"#!{sys.executable} -I\n")])


def test_no_such_program(tmp_path):
    with pytest.raises(UserError, match="no-such-program: no such program"):
        record_command(["no-such-program"], Window(0.1), tmp_path / "trace.json")


def test_a_program_that_is_not_python_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(shutil.which("true")))
    with pytest.raises(UserError, match="true: neither Python nor a shell script.*install nsys or rocprofv3"):
        record_command(["true"], Window(0.1), tmp_path / "trace.json")


def vendor(folder, name, text, monkeypatch):
    """A recorder of a vendor on PATH that writes down how it was called."""
    folder.mkdir()
    script(folder / name, f"#!{sys.executable}\nimport os, subprocess, sys\nwords = sys.argv[1:]\n"
           f"open({str(folder / 'calls')!r}, 'a').write(' '.join(words) + '\\n')\n{text}")  # fmt: skip
    monkeypatch.setenv("PATH", f"{folder}:{os.path.dirname(shutil.which('true'))}")
    return folder / "calls"


def test_another_program_is_recorded_by_nsys_where_it_is_installed(tmp_path, monkeypatch):
    text = (
        "out = next(w for w in words if w.startswith('--output=')).split('=', 1)[1]\n"
        "if words[0] == 'profile':\n"
        "    subprocess.run(words[words.index('true'):], check=True)\n"
        "    out += '.nsys-rep'\n"
        "open(out, 'w').write(words[0])\n"
    )
    calls = vendor(tmp_path / "bin", "nsys", text, monkeypatch)
    found = record_command(["true", "7"], Window(2.0), tmp_path / "trace.sqlite", delay=1.0)
    assert (tmp_path / "trace.sqlite").read_text() == "export"
    profile = calls.read_text().splitlines()[0]
    assert "--cuda-graph-trace=node" in profile and "--delay=1 --duration=2" in profile and profile.endswith("true 7")
    assert found.notes == ["recorded with nsys"]


def test_another_program_is_recorded_by_rocprofv3_where_it_is_installed(tmp_path, monkeypatch):
    text = "open(words[words.index('-d') + 1] + '/trace_results.json', 'w').write('{}')\n"
    calls = vendor(tmp_path / "bin", "rocprofv3", text, monkeypatch)
    record_command(["true", "7"], Window(2.0), tmp_path / "trace.json", delay=1.0)
    assert (tmp_path / "trace.json").read_text() == "{}"
    assert "--collection-period 1:2:1" in calls.read_text() and calls.read_text().strip().endswith("-- true 7")


def test_steps_of_another_program_cannot_be_counted(tmp_path, monkeypatch):
    vendor(tmp_path / "bin", "nsys", "", monkeypatch)
    with pytest.raises(UserError, match="--steps: nsys knows no steps of true: give --seconds"):
        record_command(["true"], Window(2.0, steps=3), tmp_path / "trace.sqlite")


def test_the_folder_of_the_trace_is_its_user_s_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    scratch = str(tmp_path / "scratch")
    code = (
        f"import os; folder = os.path.join({scratch!r}, os.listdir({scratch!r})[0])\n"
        f"open({str(tmp_path / 'mode')!r}, 'w').write(str(os.stat(folder).st_mode))"
    )
    with pytest.raises(UserError):
        record_command([sys.executable, "-c", code], Window(0.1), tmp_path / "trace.json")
    assert stat.S_IMODE(int((tmp_path / "mode").read_text())) == 0o700
