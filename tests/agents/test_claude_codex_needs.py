"""Where the programs are looked for, what of them is readable in a jail, and what is said when something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from atrex.agents import cli_stream
from atrex.agents.base import Choice, Task, get
from atrex.cli.main import app
from atrex.errors import UserError

KEYS = {"claude": "ANTHROPIC_API_KEY", "codex": "OPENAI_API_KEY"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of programs that is all there is on the PATH."""
    made = tmp_path / "bin"
    made.mkdir()
    monkeypatch.setenv("PATH", str(made))
    return made


def _program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _package(root: Path, name: str, first: str) -> Path:
    """A package as npm lays it out, with its platform's one beside it."""
    scope = root / "node_modules" / "@scope"
    program = _program(scope / name / "bin" / f"{name}.js", first)
    for package in (scope / name, scope / f"{name}-linux"):
        package.mkdir(exist_ok=True)
        (package / "package.json").write_text("{}")
    return program


def test_a_package_is_readable_with_what_lies_beside_it(folder, tmp_path):
    (folder / "tool").symlink_to(_package(tmp_path / "lib", "tool", "#!/bin/sh\n"))
    _package(tmp_path / "lib", "other", "#!/bin/sh\n")
    found = cli_stream.find("tool")
    root = tmp_path / "lib" / "node_modules" / "@scope"
    assert found.argv == (str(root / "tool" / "bin" / "tool.js"),)
    assert set(found.readable) == {str(root / "tool"), str(root / "tool-linux")}


def test_a_script_for_node_is_started_by_node(folder, tmp_path):
    (folder / "tool").symlink_to(_package(tmp_path / "lib", "tool", "#!/usr/bin/env node\n"))
    assert cli_stream.find("tool") is None
    node = _program(tmp_path / "versions" / "node")
    (folder / "node").symlink_to(node)
    found = cli_stream.find("tool")
    assert found.argv[0] == str(node) and str(node) in found.readable and found.argv[1].endswith("tool.js")


def test_a_program_without_a_package_is_readable_alone(folder, tmp_path):
    program = _program(tmp_path / "home" / "share" / "tool")
    (tmp_path / "home" / "package.json").write_text("{}")  # a project of the user's, and no package
    (folder / "tool").symlink_to(program)
    assert cli_stream.find("tool").readable == (str(program),)


@pytest.mark.parametrize("name", list(KEYS))
def test_what_is_missing_is_named_with_how_to_get_it(name, folder, monkeypatch, tmp_path):
    monkeypatch.delenv(KEYS[name], raising=False)
    program, key = get(name).needs()
    assert (program.what, program.here, key.what, key.here) == (name, False, KEYS[name], False)
    given = ["generate", "--agent", name, "--dsl", "cpp", "--problem", "rms_norm", "--out", str(tmp_path / "out")]
    with pytest.raises(UserError, match=f"{name} is missing: npm install -g"):
        CliRunner().invoke(app, given, catch_exceptions=False)
    _program(folder / name)
    with pytest.raises(UserError, match=f"{KEYS[name]} is missing: export"):
        CliRunner().invoke(app, given, catch_exceptions=False)


@pytest.mark.parametrize("name", list(KEYS))
def test_a_base_url_that_is_none_is_one_line(name, folder):
    _program(folder / name)
    with pytest.raises(UserError, match="--base-url 'ftp://x': expected"):
        get(name)(Choice(name, base_url="ftp://x"))


@pytest.mark.parametrize("url", ["https://me:secret@gateway.example", "https://gateway.example/v1?key=secret"])
def test_a_base_url_with_a_secret_is_refused_without_repeating_it(url):
    with pytest.raises(UserError, match="no password and no query") as refused:
        Choice.parse("api:m", None, url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", [*KEYS, "manual"])
def test_a_model_behind_the_name_of_an_agent_is_not_passed_over(name, folder):
    _program(folder / name)
    with pytest.raises(UserError, match=f"expected {name} alone; --model"):
        get(name)(Choice.parse(f"{name}:opus"))


@pytest.mark.parametrize("name", list(KEYS))
def test_the_key_is_in_no_hand_but_the_supervisors(name, folder, monkeypatch, tmp_path):
    """Nothing that is written for the program, or printed of the agent, has it."""
    monkeypatch.setenv(KEYS[name], "sk-real-0123456789")
    _program(folder / name)
    agent = get(name)(Choice(name))
    task = Task("rms_norm", "cpp", "", 0.0)
    assert agent.terms(task).service.key == "sk-real-0123456789" and agent.terms(task).hosts == ()
    assert "sk-real" not in repr(agent.terms(task))
