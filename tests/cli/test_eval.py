"""`atrex eval` and `atrex repro` as a user meets them: one line for bad input, and nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
HONEST = (ROOT / "examples" / "candidates" / "torch" / "rms_norm.py").read_text()
WRONG = HONEST.replace("return ", "return 0.5 * ", 1)


def atrex(*arguments, cwd, **kwargs):
    command = [sys.executable, "-m", "atrex.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **kwargs)


def refused(done, *says):
    """One line on stderr that says it all, exit status 2, no traceback."""
    assert done.returncode == 2, done.stderr
    line = done.stderr.strip().splitlines()
    assert len(line) == 1 and line[0].startswith("error: "), done.stderr
    for text in says:
        assert text in line[0], line[0]


@pytest.fixture
def candidate(tmp_path):
    def write(source, name="rms_norm.py"):
        (tmp_path / name).write_text(source)
        return name

    return write


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "empty file"),
        ("class Model(:\n", "syntax error"),
        ("import torch\n", "no Model"),
        ("class Model:\n    def forward(self, x): ...\n", "expected (x, weight)"),
    ],
)
def test_a_file_that_cannot_be_a_candidate(candidate, tmp_path, source, says):
    refused(atrex("eval", candidate(source), "--device", "cpu", cwd=tmp_path), "rms_norm.py", says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["missing.py"], "missing.py"),
        (["rms_norm.py", "--problem", "rms_nrom"], "unknown operator"),
        (["rms_norm.py", "--shapes", "999"], "no shape '999'"),
        (["rms_norm.py", "--shapes", "0", "--dsl", "cobol"], "cobol"),
        (["rms_norm.py", "--shapes", "0", "--dsl", "triton"], "triton"),
        (["rms_norm.py", "--device", "tpu"], "tpu"),
        (["rms_norm.py", "--resume"], "--out"),
        (["rms_norm.py", "--execution-budget", "0"], "--execution-budget"),
        (["rms_norm.py", "--shapes", "46", "--suite", "nowhere"], "nowhere"),
    ],
)
def test_bad_options(candidate, tmp_path, options, says):
    candidate(HONEST)
    if "--device" not in options:
        options = [*options, "--device", "cpu"]
    refused(atrex("eval", *options, cwd=tmp_path), says)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_asked_for_where_there_is_none(candidate, tmp_path):
    refused(atrex("eval", candidate(HONEST), "--device", "cuda:0", cwd=tmp_path), "cuda:0", "no CUDA device")


def test_an_output_directory_that_cannot_be_written(candidate, tmp_path):
    (tmp_path / "file").write_text("")
    done = atrex("eval", candidate(HONEST), "--shapes", "46", "--device", "cpu", "--out", "file/run", cwd=tmp_path)
    refused(done, "file/run", "--out")


@pytest.mark.alone
def test_a_run_closes_with_its_seeds_is_not_overwritten_and_repeats_as_a_script(candidate, tmp_path):
    options = [candidate(WRONG), "--device", "cpu", "--shapes", "46", "--seeds", "1", "--no-held-out", "--out", "run"]
    done = atrex("eval", *options, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["closed"] and run["seeds"] and run["budgets"]["execution"] == 10.0
    assert not (tmp_path / "run" / "seeds.secret").exists()

    refused(atrex("eval", *options, cwd=tmp_path), "run", "--resume")

    script = atrex("repro", "run", "rms_norm/46", cwd=tmp_path).stdout.strip()
    again = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    record = json.loads((tmp_path / "run" / "units.jsonl").read_text())
    assert again.stdout.startswith("failed")
    assert str(record["correctness"]["where"]["index"]) in again.stdout
    refused(atrex("repro", "run", "rms_norm/47", cwd=tmp_path), "rms_norm/47")


@pytest.mark.alone
def test_ctrl_c_keeps_finished_units_and_resume_continues(candidate, tmp_path):
    slow = HONEST.replace(
        "def forward(",
        "def forward(self, *a):\n        import time; time.sleep(0.01)\n        return self.real(*a)\n\n    def real(",
    )
    options = ["eval", candidate(slow), "--device", "cpu", "--shapes", "15,41,46", "--no-held-out", "--out", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "atrex.cli.main", *options],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    units = tmp_path / "run" / "units.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (units.exists() and units.read_text().count("\n") >= 1):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in stderr
    finished = units.read_text().splitlines()
    assert 1 <= len(finished) < 3
    secret = tmp_path / "run" / "seeds.secret"
    assert secret.stat().st_mode & 0o777 == 0o600

    refused(atrex("eval", *options[1:], "--resume", "--seeds", "4", cwd=tmp_path), "seed_count")
    candidate(slow + "\n# edited\n")
    refused(atrex("eval", *options[1:], "--resume", cwd=tmp_path), "candidates")
    candidate(slow)
    done = atrex(*options, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = units.read_text().splitlines()
    assert after[: len(finished)] == finished and len(after) == 3
    assert sorted(json.loads(line)["shape"] for line in after) == ["15", "41", "46"]


@pytest.mark.alone
def test_a_run_of_another_suite_version_is_not_resumed(candidate, tmp_path):
    options = [candidate(HONEST), "--device", "cpu", "--shapes", "46", "--seeds", "1", "--no-held-out", "--out", "run"]
    assert atrex("eval", *options, cwd=tmp_path).returncode == 0
    path = tmp_path / "run" / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"suite_version": "0.0"}))
    refused(atrex("eval", *options, "--resume", cwd=tmp_path), "suite_version", "0.0")


@pytest.mark.alone
def test_a_directory_is_judged_whole_and_a_broken_file_in_it_is_a_failed_unit(candidate, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "rms_norm.py").write_text(HONEST)
    (folder / "silu_and_mul.py").write_text("def broken(:\n")
    done = atrex(
        "eval", "set", "--device", "cpu", "--shapes", "0", "--seeds", "1", "--no-held-out", "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "units.jsonl").read_text().splitlines()]
    verdicts = {r["operator"]: (r["verdict"]["status"], r["verdict"]["category"]) for r in records}
    assert verdicts == {"rms_norm": ("passed", None), "silu_and_mul": ("failed", "exception")}


@pytest.mark.alone
def test_quick_answers_soon(candidate, tmp_path):
    started = time.monotonic()
    done = atrex("eval", candidate(HONEST), "--device", "cpu", "--quick", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = [json.loads(line) for line in (tmp_path / "run" / "units.jsonl").read_text().splitlines()]
    assert record["performance"]["n"] == 20 and list(record["correctness"]["cases"])[0] == "seed0"
    assert time.monotonic() - started < 30  # 15 s on an idle machine


@pytest.mark.alone
def test_the_python_call_means_the_same(candidate, tmp_path):
    import atrex as package

    records = package.evaluate(tmp_path / candidate(HONEST), "rms_norm", shapes=[46], device="cpu", quick=True)
    assert [(r.operator, r.shape, r.verdict.status) for r in records] == [("rms_norm", "46", "passed")]
