"""The tuner in its jail: from a template to a candidate, with what fails on the way told."""

from __future__ import annotations

import json
import shutil
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

pytest.importorskip("optuna")

from atrex.agents.base import Choice, Task  # noqa: E402
from atrex.agents.jail import Jail  # noqa: E402
from atrex.agents.tuner.agent import Tuner  # noqa: E402
from atrex.agents.tuner.knobs import find, values  # noqa: E402
from atrex.agents.tuner.measuring import write  # noqa: E402
from atrex.agents.tuner.templates import known, path  # noqa: E402
from atrex.cli.main import app  # noqa: E402
from atrex.errors import UserError  # noqa: E402
from atrex.generate.records import load_records  # noqa: E402
from atrex.generate.transcript import read  # noqa: E402
from tests.agents.test_tuner_measure import KERNEL, problem  # noqa: E402

BUILDS = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
# A kernel of one knob: two of its values are correct, and one of them is ten times as fast as the default.
KNOB = (
    'from typing import Literal\nKIND: Literal["slow", "fast", "wrong", "broken", "crash"] = "slow"\n'
    "if KIND == 'broken':\n    raise RuntimeError('error: no such instruction')\n"
    + KERNEL.replace(
        "return",
        "time.sleep({'slow': 0.01, 'fast': 0.001}.get(KIND, 0))\n"
        "        if KIND == 'crash': os.abort()\n"
        "        return (KIND == 'wrong') + ",
    )
)


@pytest.fixture
def tune(tmp_path):
    """Works on a small problem with a kernel: (events, the candidate that is left)."""

    def run(kernel: str, seconds: float = 200, device: str = "cpu"):
        file = tmp_path / "kernel.py"
        file.write_text(kernel)
        agent = Tuner(Choice("tuner", str(file)))
        task = Task("scale", "cpp", "", time.monotonic() + seconds, device=device)
        terms = agent.terms(task)
        if device == "cuda":  # asked for, and not granted
            terms = type(terms)(readable=terms.readable, device="cpu")
        with Jail(tmp_path / "jail", terms) as jail:
            problem(jail.workspace)
            events = list(agent.work(task, jail))
            return events, (jail.workspace / "candidate.py").read_text()

    return run


def _said(events) -> str:
    return "\n".join(event.text for event in events if event.kind == "message")


@BUILDS
def test_the_fast_value_is_kept_and_every_failure_is_told(tune):
    events, candidate = tune(KNOB)
    said = _said(events)
    assert find(candidate) == () and "KIND = 'fast'" in candidate, said
    assert "KIND=wrong: wrong: shape 0: out: off by" in said
    assert "KIND=broken: error: RuntimeError: error: no such instruction" in said
    assert "KIND=crash: crash: SIGABRT" in said
    assert "every combination was tried" in said and "KIND=fast" in said.splitlines()[-1]
    results = [event for event in events if event.kind == "tool_result"]
    assert sum(result.failed for result in results) == 3 and events[-1].how == "done"
    assert len(results) == sum(event.kind == "tool_call" for event in events)


@BUILDS
def test_values_that_make_no_difference_leave_the_defaults(tune):
    same = KNOB.replace('"slow", "fast", "wrong", "broken", "crash"', '"slow", "also slow"')
    events, candidate = tune(same.replace("{'slow': 0.01, 'fast': 0.001}.get(KIND, 0)", "0.002"))
    assert "KIND = 'slow'" in candidate and "the defaults stay" in _said(events)


@BUILDS
def test_it_ends_before_its_deadline_and_has_left_the_defaults(tune):
    began = time.monotonic()
    events, candidate = tune(KNOB.replace("0.01,", "0.1,"), seconds=9)
    assert time.monotonic() - began < 12 and events[-1].kind == "ended"
    assert "KIND = 'slow'" in candidate and find(candidate) == ()


@BUILDS
def test_defaults_that_are_wrong_end_it_with_the_reason(tune):
    events, _ = tune(KNOB.replace('= "slow"', '= "wrong"'))
    assert events[-1].how == "error" and "with its defaults: shape 0: out: off by" in events[-1].reason


def test_a_kernel_without_knobs_is_left_as_it_is(tune):
    events, candidate = tune(KERNEL)
    assert candidate == KERNEL and "no knobs" in _said(events) and events[-1].how == "done"


def test_without_the_device_the_defaults_are_kept_and_it_says_so(tune):
    events, candidate = tune(KNOB, device="cuda")
    assert "KIND = 'slow'" in candidate and "no device to measure on" in _said(events) and events[-1].how == "done"


def test_a_broken_knob_is_the_reason(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("from typing import Literal\nA: Literal[1, 2] = 3\n")
    jail = SimpleNamespace(workspace=tmp_path)
    events = list(Tuner(Choice("tuner", str(file))).work(Task("scale", "cpp", "", 0.0), jail))
    assert events[-1].how == "error" and "kernel.py:2: A = 3" in events[-1].reason


def test_an_operator_without_a_template_is_the_reason(tmp_path):
    events = list(Tuner(Choice("tuner")).work(Task("l2_norm", "cpp", "", 0.0), SimpleNamespace(workspace=tmp_path)))
    assert events[-1].how == "error" and "no template of l2_norm in cpp" in events[-1].reason


@pytest.mark.parametrize("argument", ["no/such.py", "3:no/such.py", "-1"])
def test_a_choice_that_cannot_be_is_one_line(argument):
    with pytest.raises(UserError, match="expected tuner, tuner:TRIALS, tuner:FILE or tuner:TRIALS:FILE"):
        Tuner(Choice.parse(f"tuner:{argument}"))


def test_a_link_that_a_kernel_has_left_is_replaced_and_not_followed(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for name in ("candidate.py", "candidate.py.new"):
        (workspace / name).symlink_to(outside)
    write(SimpleNamespace(workspace=workspace), "candidate.py", "new")
    assert outside.read_text() == "kept" and not (workspace / "candidate.py").is_symlink()
    assert (workspace / "candidate.py").read_text() == "new"


@BUILDS
def test_rms_norm_from_the_command_to_a_candidate(tmp_path):
    out = tmp_path / "out"
    arguments = ["generate", "--agent", "tuner:2", "--dsl", "cpp", "--problem", "rms_norm", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    (record,) = load_records(out)
    assert result.exit_code == 0 and record.ended == "done" and record.candidate_sha256, record
    assert record.usage is None and record.cost_usd is None and record.tools == ["measure"]
    assert record.confinement["unconfined"] == []
    events = [event for _, event in read(out / "transcripts" / "rms_norm-0.jsonl")]
    trials = [event.text for event in events if event.kind == "message" and event.text.startswith("trial ")]
    assert len(trials) == 2 and all("PER_THREAD=" in text for text in trials), trials
    measured = [json.loads(event.text) for event in events if event.kind == "tool_result"]
    assert all(times["pairs"] >= 3 for each in measured for times in each.get("times", {}).values())
    candidate = (out / "sample-0" / "rms_norm.py").read_text()
    constants: dict = {}
    exec(candidate[candidate.index("VECTOR =") : candidate.index("def build")], constants)
    template = find(path("cpp", "rms_norm").read_text())
    assert find(candidate) == () and all(constants[knob.name] in knob.options for knob in template)


@pytest.mark.gpu
def test_a_triton_template_is_tuned_on_a_device(tmp_path):
    out = tmp_path / "out"
    arguments = [
        "generate",
        "--agent",
        "tuner:3",
        "--dsl",
        "triton",
        "--problem",
        "rms_norm",
        "--gpu",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    (record,) = load_records(out)
    assert result.exit_code == 0 and record.ended == "done" and record.candidate_sha256, record
    events = [event for _, event in read(out / "transcripts" / "rms_norm-0.jsonl")]
    trials = [event.text for event in events if event.kind == "message" and event.text.startswith("trial ")]
    assert len(trials) == 3 and all("of the incumbent's time" in text for text in trials), _said(events)


def test_templates_have_knobs_with_the_names_that_the_kernels_use():
    assert known() == {dsl: ["block_scaled_mm", "rms_norm", "silu_and_mul"] for dsl in ("cpp", "triton")}
    for dsl, operators in known().items():
        for operator in operators:
            source = path(dsl, operator).read_text()
            for name in values(find(source)):
                assert source.count(name) > 1, f"{dsl} {operator}: {name} is used nowhere"
