"""`atrex attacks`: what is printed, recorded and returned."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from atrex.evaluate.run import device_name

pytestmark = pytest.mark.alone

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def atrex(*arguments):
    command = [sys.executable, "-m", "atrex.cli.main", "attacks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_listing_runs_nothing_and_names_the_ways():
    done = atrex("--list")
    assert done.returncode == 0
    assert "zero_fill (3, 6, 7): Zeros or a constant" in done.stdout


def test_an_unknown_attack_is_one_line_and_status_2():
    done = atrex("--only", "no_such", "--device", "cpu")
    assert done.returncode == 2 and done.stderr.startswith("error: --only no_such: unknown attack")


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    done = atrex("--only", "zero_fill", "--device", "cpu", "--out", str(tmp_path / "none" / "record.json"))
    assert done.returncode == 2 and "no such folder" in done.stderr


@needs_compiler
def test_the_record_says_what_came_of_every_cheat_and_where(tmp_path):
    out = tmp_path / "record.json"
    done = atrex("--only", "zero_fill", "--device", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 cheats of 1 attacks, 0 wrong" in done.stdout
    record = json.loads(out.read_text())
    assert record["device"] == "cpu" and record["versions"]["torch"] and record["confinement"]["no_new_privs"]
    assert [row["cheat"] for row in record["rows"]] == ["zeros", "constant", "weight alone"]
    assert all(row["right"] and row["outcome"]["category"] == "numeric_mismatch" for row in record["rows"])
    assert all(row["twin"]["status"] == "passed" for row in record["rows"])


@needs_compiler
def test_a_record_that_is_there_gets_the_rows_of_these_attacks_anew(tmp_path):
    out = tmp_path / "record.json"
    assert atrex("--only", "zero_fill", "--only", "nan_output", "--device", "cpu", "--out", str(out)).returncode == 0
    before = json.loads(out.read_text())
    for row in before["rows"]:
        row["right"] = False
    out.write_text(json.dumps(before))
    assert atrex("--only", "zero_fill", "--device", "cpu", "--out", str(out)).returncode == 0
    after = json.loads(out.read_text())
    assert {name.split(":")[0] for name in after["wrong"]} == {"nan_output"} and after["cheats"] == len(before["rows"])
    assert {row["attack"] for row in after["rows"] if row["date"] == before["date"]} == {"nan_output"}


@needs_compiler
@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "expected a record of `atrex attacks`"), ('{"device_name": "other", "rows": []}', "a record of other")],
)
def test_a_file_that_is_no_record_of_this_device_is_refused_and_kept(tmp_path, content, message):
    out = tmp_path / "record.json"
    out.write_text(content)
    done = atrex("--only", "zero_fill", "--device", "cpu", "--out", str(out))
    assert done.returncode == 2 and message in done.stderr and out.read_text() == content


def test_a_record_that_nothing_can_be_joined_to_is_refused_before_anything_is_judged(tmp_path):
    out = tmp_path / "record.json"
    out.write_text(json.dumps({"device_name": device_name(torch.device("cpu")), "rows": [{"attack": "hang"}]}))
    done = atrex("--only", "zero_fill", "--device", "cpu", "--out", str(out))
    assert done.returncode == 2 and "expected a record of `atrex attacks`" in done.stderr


@needs_compiler
def test_an_interrupt_leaves_what_was_judged(tmp_path):
    out = tmp_path / "record.json"
    command = [sys.executable, "-m", "atrex.cli.main", "attacks", "--device", "cpu", "--only", "hang", "--only",
               "dropped_operand", "--out", str(out)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert "dropped_operand" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert "interrupted: 1 cheats were judged" in running.stderr.read()
    record = json.loads(out.read_text())
    assert record["interrupted"] and [row["attack"] for row in record["rows"]] == ["dropped_operand"]
