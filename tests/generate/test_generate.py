"""From a problem to a judged folder: what the agent sees, what is kept of it, what interrupts do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.evaluate.candidates import resolve
from atrex.generate.records import load_about, load_records
from atrex.generate.transcript import read
from atrex.hardware.sandbox import landlock_abi

pytestmark = pytest.mark.skipif(landlock_abi() is None, reason="needs Landlock")
RUNNER = CliRunner()


@pytest.fixture
def agent(tmp_path):
    """Makes `command:` agents of shell scripts."""

    def make(script: str, name: str = "agent.sh") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return f"command:{path}"

    return make


@pytest.fixture
def generate(tmp_path):
    def run(agent: str, *more: str, out: Path | None = None):
        out = out or tmp_path / "out"
        arguments = ["generate", "--agent", agent, "--dsl", "cpp", "--out", str(out), *more]
        return out, RUNNER.invoke(app, arguments, catch_exceptions=False)

    return run


def _printed(out: Path, operator: str) -> list[str]:
    events = read(out / "transcripts" / f"{operator}-0.jsonl")
    return [event.text for _, event in events if event.kind == "output"]


def test_the_agent_sees_four_files_and_no_more(agent, generate):
    out, _ = generate(agent("find . -type f | sort; ls .."), "--problem", "rms_norm")
    printed = _printed(out, "rms_norm")
    printed = [line for line in printed if line != "0" and "denied" not in line]
    assert printed == ["./PROMPT.md", "./input.py", "./reference.py", "./shapes.json"]


def test_reference_and_inputs_run_without_this_package(agent, generate):
    script = (
        "python - <<P\nimport json, reference, input\nshape = json.load(open('shapes.json'))['0']\n"
        "out = reference.Model(**shape['init_kwargs'])(**input.make_inputs(**shape['input_kwargs']))\n"
        "print([t.shape for t in out.values()])\nP"
    )
    out, _ = generate(agent(script), "--problem", "fused_add_rms_norm")
    printed = [
        event.text for _, event in read(out / "transcripts" / "fused_add_rms_norm-0.jsonl") if event.kind == "output"
    ]
    assert len(printed) == 1 and "torch.Size" in printed[0], printed


def test_what_it_leaves_is_a_candidate_set_that_eval_takes(agent, generate):
    script = "printf 'class Model: pass' > candidate.py"
    out, result = generate(agent(script), "--problem", "rms_norm", "--problem", "silu_and_mul", "--samples", "2")
    assert result.exit_code == 0, result.output
    found = resolve([str(out)], ["rms_norm", "silu_and_mul"], None)
    assert [(c.set_name.rsplit("/", 1)[1], c.operator) for c in found] == [
        ("sample-0", "rms_norm"), ("sample-0", "silu_and_mul"), ("sample-1", "rms_norm"), ("sample-1", "silu_and_mul"),
    ]  # fmt: skip
    assert {c.source for c in found} == {"class Model: pass"}
    assert all(r.ended == "done" and r.candidate_sha256 for r in load_records(out))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("true", "left no candidate.py"),
        ("exit 3", "exit status 3"),
        (": > candidate.py", "is empty"),
        ("mkdir candidate.py", "no plain file"),
        ("ln -s /etc/passwd candidate.py", "no plain file"),
        ("mkfifo candidate.py", "no plain file"),
        ("head -c 300000 /dev/zero > candidate.py", "larger than 256 KiB"),
        ("printf '\\377\\376' > candidate.py", "not UTF-8"),
    ],
)
def test_a_problem_without_a_candidate_says_why_and_fails(agent, generate, script, why):
    out, result = generate(agent(script), "--problem", "rms_norm")
    (record,) = load_records(out)
    assert result.exit_code == 0 and record.candidate_sha256 is None and why in record.reason
    (candidate,) = resolve([str(out)], ["rms_norm"], None)
    assert "class Model" not in candidate.source


def test_a_file_of_an_earlier_run_is_never_taken(agent, generate, tmp_path):
    out, _ = generate(agent("printf 'class Model: pass' > candidate.py"), "--problem", "rms_norm")
    (out / "generated.jsonl").unlink()
    out, result = generate(agent("true", "agent.sh"), "--problem", "rms_norm", "--resume")
    (record,) = load_records(out)
    assert record.candidate_sha256 is None and "class Model" not in (out / "sample-0" / "rms_norm.py").read_text()


def test_an_agent_that_hangs_ends_at_its_time_and_keeps_its_file(agent, generate):
    script = "printf 'class Model: pass' > candidate.py; sleep 1000"
    out, _ = generate(agent(script), "--problem", "rms_norm", "--timeout", "0.03")
    (record,) = load_records(out)
    assert record.ended == "timeout" and record.candidate_sha256 and record.seconds < 15


def test_a_flood_of_output_is_kept_as_lines(agent, generate):
    out, _ = generate(agent("seq 20000"), "--problem", "rms_norm")
    assert sum(event.kind == "output" for _, event in read(out / "transcripts" / "rms_norm-0.jsonl")) == 20000


def test_an_interrupt_keeps_what_is_done_and_resume_goes_on(agent, tmp_path):
    out = tmp_path / "out"
    script = '[ "$ATREX_OPERATOR" = rms_norm ] || sleep 1000; printf "class Model: pass" > candidate.py'
    command = [sys.executable, "-m", "atrex.cli.main", "generate", "--agent", agent(script), "--dsl", "cpp",
               "--problem", "rms_norm", "--problem", "l2_norm", "--out", str(out)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not ((out / "generated.jsonl").exists() and (out / "generated.jsonl").read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2 and "1 of 2 finished and kept" in said
    assert [r.operator for r in load_records(out)] == ["rms_norm"]
    agent('printf "class Model: pass" > candidate.py')
    again = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True)
    assert json.loads(again.stdout)["operator"] == "l2_norm", again.stderr
    assert sorted(r.operator for r in load_records(out)) == ["l2_norm", "rms_norm"]


def test_a_line_cut_off_by_a_crash_is_done_again(agent, generate):
    script = agent("printf 'class Model: pass' > candidate.py")
    out, _ = generate(script, "--problem", "rms_norm", "--problem", "l2_norm")
    records = out / "generated.jsonl"
    records.write_bytes(records.read_bytes()[:-40])
    _, result = generate(script, "--problem", "rms_norm", "--problem", "l2_norm", "--resume", "--json")
    assert len(result.output.splitlines()) == 1 and len(load_records(out)) == 2


def test_a_run_that_goes_on_with_less_remembers_all_that_was_asked(agent, generate):
    script = agent("printf 'class Model: pass' > candidate.py")
    generate(script, "--problem", "rms_norm", "--samples", "2", "--seen", "all of it")
    out, _ = generate(script, "--problem", "l2_norm", "--resume")
    assert load_about(out).seen == "all of it"
    assert (load_about(out).operators, load_about(out).samples) == (["rms_norm", "l2_norm"], 2)


def test_a_person_is_told_where_to_work(generate, tmp_path):
    place = tmp_path / "out" / "workspaces" / "rms_norm-0" / "workspace"
    _, result = generate("manual", "--problem", "rms_norm", "--timeout", "0.01")
    assert str(place / "candidate.py") in result.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--problem", "rms_nrom"], "unknown operator"),
        ([], "--problem or --all"),
        (["--problem", "rms_norm", "--all"], "--problem or --all"),
        (["--problem", "rms_norm", "--timeout", "0"], "--timeout 0"),
        (["--problem", "rms_norm", "--budget-usd", "0"], "--budget-usd 0"),
        (["--problem", "rms_norm", "--arch", "sm_90"], "--arch"),
    ],
)
def test_bad_input_is_one_line(agent, generate, more, said):
    with pytest.raises(UserError, match=said):
        generate(agent("true"), *more)


@pytest.mark.parametrize(
    ("name", "said"),
    [("nobody", "unknown agent"), ("command:", "no program"), ("command:/no/such", "no such program")],
)
def test_an_agent_that_cannot_be_is_one_line(generate, name, said):
    with pytest.raises(UserError, match=said):
        generate(name, "--problem", "rms_norm")


def test_a_run_is_continued_only_as_it_began(agent, generate, tmp_path):
    script = agent("true")
    out, _ = generate(script, "--problem", "rms_norm")
    with pytest.raises(UserError, match="holds a run already"):
        generate(script, "--problem", "rms_norm")
    with pytest.raises(UserError, match="policy is 'default'"):
        generate(script, "--problem", "rms_norm", "--resume", "--policy", "extended")


def test_runs_say_in_what_they_differ(agent, generate, tmp_path):
    one, _ = generate(agent("true"), "--problem", "rms_norm")
    two, _ = generate(agent("true"), "--problem", "rms_norm", "--policy", "extended", out=tmp_path / "two")
    assert load_about(one).differs(load_about(two)) == ["policy"] and load_about(one).differs(load_about(one)) == []


def test_the_record_says_what_held_the_agent(agent, generate):
    out, _ = generate(agent("true"), "--problem", "rms_norm")
    (record,) = load_records(out)
    assert record.confinement["unconfined"] == [] and record.usage is None and os.listdir(out / "workspaces") == []
