"""`atrex trace record`, as a user meets it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.traces.record import engines
from tests.traces.record import small_torch
from tests.traces.record.servers import Sglang, Vllm, serving
from tests.traces.record.test_launch import WORK, needs_no_device


def run(*arguments, status=0):
    result = CliRunner().invoke(app, ["trace", "record", *map(str, arguments)])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(engines, "QUIET", 0.2)


@needs_no_device
def test_a_program_after_two_dashes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(small_torch.install(tmp_path / "packages")))
    out = run("--out", tmp_path / "a.json", "--seconds", 0.1, "--", sys.executable, "-c", WORK.format(0.3))
    assert f"{tmp_path}/a.json: 0.0 MB, 0.1" in out


def test_a_document(tmp_path):
    with serving(Sglang()) as url:
        document = json.loads(run("--out", tmp_path / "a.json", "--url", url, "--steps", 3, "--json"))
    assert document["files"] == [f"{tmp_path}/a.json"] and document["engine"] == "sglang"


def test_a_trace_that_stays_on_the_server_is_status_1(tmp_path):
    with serving(Vllm(tmp_path)) as url:
        out = run("--out", tmp_path / "a.json", "--url", url, "--seconds", 0.1, status=1)
    assert out.startswith("note: the trace is on the machine of ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one of --pid PID, --url"),
        (["--pid", 1, "--url", "http://a"], "expected one of --pid PID, --url"),
        (["--pid", 1, "--", "python"], "expected one of --pid PID, --url"),
        (["--pid", 1, "--seconds", 0], "--seconds 0: expected more than 0 and at most 600"),
        (["--pid", 1, "--seconds", 601], "--seconds 601: expected more than 0 and at most 600"),
        (["--pid", 1, "--steps", 0], "--steps 0: expected at least 1"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run("--out", tmp_path / "a.json", *arguments)


def test_an_output_that_cannot_be_written_is_said_before_anything_is_recorded(tmp_path):
    with pytest.raises(UserError, match="is no directory that can be written"):
        run("--out", tmp_path / "none" / "a.json", "--pid", 1)
    with pytest.raises(UserError, match="is a directory: expected a file"):
        run("--out", tmp_path, "--pid", 1)
