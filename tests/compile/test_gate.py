"""The gate's processes: time limits, crashes, exit status, and what goes into the record."""

import json

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.compile.gate import Job, compile_candidate
from atrex.dsls.offline import parse_target
from atrex.errors import UserError
from atrex.problems.load import load_suite

BUILD = """
import ctypes, os, subprocess, tempfile, time, torch
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "k.cpp"), "w") as file:
    file.write('extern "C" int one() { return 1; }')
subprocess.run(["g++", "-shared", "-fPIC", "k.cpp", "-o", "k.so"], cwd=folder, check=True)
ctypes.CDLL(os.path.join(folder, "k.so"))
print("what a candidate prints is not an answer")
class Model(torch.nn.Module):
    calls = 0
    def __init__(self, eps):
        super().__init__()
        Model.calls += 1
        ACT
"""


def job(act, shapes=("46", "47", "48")):
    source = BUILD.replace("ACT", act)
    folder = load_suite().problem("rms_norm").folder
    return Job("mine.py", source, "mine.py", "rms_norm", list(shapes), "cpp", parse_target("cpu"), folder)


@pytest.mark.slow
def test_a_shape_that_takes_too_long_fails_and_the_next_one_is_compiled():
    told = []
    found = compile_candidate(job("if Model.calls == 2: time.sleep(600)"), 6.0, told.append)
    assert [(o.shape, o.status) for o in found] == [("46", "compiled"), ("47", "failed"), ("48", "compiled")]
    assert found[1].reason == "did not compile within 6 s" and told == found
    assert [a["kind"] for a in found[0].artifacts] == ["so"]


def test_a_process_that_dies_is_that_shape_s_failure():
    found = compile_candidate(job("if Model.calls == 2: os.kill(os.getpid(), 11)", ("46", "47")), 60.0)
    assert [o.status for o in found] == ["compiled", "failed"]
    assert "killed by SIGSEGV" in found[1].reason


def test_a_candidate_writes_nowhere_but_in_its_own_folder(tmp_path):
    held = []
    act = f"open({str(tmp_path / 'elsewhere')!r}, 'w')"
    found = compile_candidate(job(act, ("46",)), 60.0, held=held.append)
    if held[0]["files"] == "unconfined":
        pytest.skip("files are not confined here: Landlock is missing")
    assert found[0].status == "failed" and "PermissionError" in found[0].reason
    assert not (tmp_path / "elsewhere").exists()


def test_what_ends_the_import_ends_it_for_every_shape():
    made = job("pass")
    dying = Job(**{**vars(made), "source": "import os\nos._exit(3)"})
    found = compile_candidate(dying, 60.0)
    assert [o.status for o in found] == ["failed"] * 3
    assert {o.reason for o in found} == {"the compiling process exited with status 3"}


def test_a_candidate_that_does_not_build_fails_with_the_reason():
    found = compile_candidate(job("raise ValueError('no such tile')", ("46",)), 60.0)
    assert (found[0].status, found[0].reason) == ("failed", "ValueError: no such tile")


def test_a_dsl_that_has_no_code_for_a_target_is_refused():
    made = job("pass")
    with pytest.raises(UserError, match="DSL cpp does not compile for gfx942: expected one of cpu"):
        compile_candidate(Job(**{**vars(made), "target": parse_target("gfx942")}), 60.0)


def run(*arguments):
    return CliRunner().invoke(app, ["compile", *map(str, arguments)])


@pytest.fixture
def candidate(tmp_path):
    file = tmp_path / "rms_norm.py"
    file.write_text(BUILD.replace("ACT", "pass"))
    return file


def test_the_command_prints_a_table_and_keeps_a_record(candidate, tmp_path):
    out = tmp_path / "table.json"
    done = run(candidate, "--shapes", "46,47", "--out", out, "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert [o["status"] for o in document["outcomes"]] == ["compiled"] * 2
    record = json.loads(out.read_text())
    assert record["table"]["cpp"]["cpu"]["shapes"]["compiled"] == 2
    assert record["versions"]["torch"] and record["candidates"][0]["operator"] == "rms_norm"


def test_a_failure_is_exit_status_1(candidate):
    candidate.write_text("import torch.utils.cpp_extension\nraise RuntimeError('broken')")
    done = run(candidate, "--shapes", "46")
    assert done.exit_code == 1 and "RuntimeError: broken" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "gfx9"], "--target gfx9: expected cpu, an architecture"),
        (["--target", "gfx942"], "DSL cpp does not compile for gfx942"),
        (["--target", "gfx942", "--target", "sm_90"], "--target gfx942: no candidate's DSL compiles for it"),
        (["--dsl", "opencl"], "unknown 'opencl'"),
        (["--timeout", "0"], "--timeout 0: expected a number of seconds above 0"),
    ],
)
def test_bad_input_is_one_line(candidate, arguments, message):
    done = run(candidate, *arguments)
    assert isinstance(done.exception, UserError) and message in str(done.exception)
