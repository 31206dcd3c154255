"""`atrex demo`: what it runs, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.demo import CAMPAIGN, CANDIDATES, EXAMPLES, FLEET, JUDGE, TRACES, Step, demo_steps, run_demo
from atrex.errors import UserError
from tests.docs.parsing import cli, parse


def test_every_step_is_a_command_of_the_cli():
    for step in (*TRACES, *JUDGE, *CAMPAIGN):
        parse(cli(), list(step.arguments))


def test_the_candidates_ship_with_the_package():
    assert all((EXAMPLES / "candidates" / path).is_file() for path in CANDIDATES)
    assert all((EXAMPLES / "fleet" / name).is_file() for name in FLEET)


def test_traces_are_left_out_where_their_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert demo_steps() == JUDGE + CAMPAIGN


def test_the_campaign_is_left_out_without_git(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not set(CAMPAIGN) & set(demo_steps())


def test_the_report_is_of_what_the_demo_has_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "polars")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert demo_steps()[-1].arguments == ("report", "run", "campaign", "--out", "site", "--quiet")


@pytest.mark.slow
def test_the_fleet_that_ships_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    pytest.importorskip("polars", reason="needs pip install 'atrex[traces]'")
    assert run_demo(tmp_path / "demo", lambda text: None, TRACES) == 0
    assert "silu_and_mul" in capfd.readouterr().out


def test_steps_are_shown_and_run_in_the_folder_with_the_candidates(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    said: list[str] = []
    steps = (
        Step("problems", ("suite", "list", "--json")),
        Step("cards", ("wiki", "spec", "nothing-here")),
    )
    status = run_demo(tmp_path / "demo", said.append, steps)
    assert said == [
        "==> problems\n    atrex suite list --json",
        "==> cards\n    atrex wiki spec nothing-here",
    ]
    assert json.loads(capfd.readouterr().out)
    assert status == 2
    assert (tmp_path / "demo" / "wrong" / "rms_norm.py").is_file()


def test_a_step_that_fails_ends_the_demo(tmp_path: Path):
    said: list[str] = []
    steps = (Step("one", ("suite", "show", "no_such_operator")), Step("two", ("suite", "list")))
    assert run_demo(tmp_path / "demo", said.append, steps) == 2
    assert len(said) == 1


def test_a_folder_that_is_there_is_refused(tmp_path: Path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(result.exception, UserError)
    assert "is there already" in str(result.exception)


def test_without_a_compiler_the_demo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"needs g\+\+"):
        run_demo(tmp_path / "demo", print, JUDGE)


@pytest.mark.slow
@pytest.mark.alone
def test_the_demo_judges_right_kernels_right_and_the_wrong_one_wrong(tmp_path: Path):
    assert run_demo(tmp_path / "demo", print, JUDGE) in (0, 1)
    run = tmp_path / "demo" / "run" / "units.jsonl"
    verdicts: dict[str, set[str]] = {}
    for line in run.read_text().splitlines():
        record = json.loads(line)
        verdicts.setdefault(Path(record["candidate"]).parent.name, set()).add(record["verdict"]["status"])
    assert verdicts["wrong"] == {"failed"}
    assert "passed" in verdicts["cpp"] and "failed" not in verdicts["cpp"]
