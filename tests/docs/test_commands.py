"""Every command of README, docs and the pages beside them: one that its program takes, and run where it can be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import PAGES, ROOT, Block, Command, blocks, commands
from tests.docs.parsing import check
from tests.docs.running import NOT_RUN, Page, example, why_not_run

NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
BY_NAME = {name: Page(path) for name, path in zip(NAMES, PAGES, strict=True)}
PARSERS = {"python": lambda text: compile(text, "page", "exec"), "yaml": yaml.safe_load, "json": json.loads}


def all_commands(page: Path) -> list[Command]:
    return [command for block in blocks(page) if block.is_shell for command in commands(block)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_is_one_that_its_program_takes(page: Path):
    wrong = []
    for command in all_commands(page):
        try:
            check(command.text)
        except Exception as error:  # of several libraries; each says in its text what is wrong
            wrong.append(f"{command.where}: {command.text}\n  {getattr(error, 'message', None) or error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_are_of_a_known_language_and_parse(page: Path):
    for block in blocks(page):
        if not block.is_shell:
            assert block.language, f"{block.where}: a block that is no command names its language"
            PARSERS.get(block.language, str)(block.text)


@pytest.mark.parametrize("line", [
    "atrex eval kernel.py --no-such-option",
    "atrex no-such-command",
    "atrex suite",
    "atrex score",
    "atrex eval kernel.py --seeds many",
    "python benchmarks/no_such.py",
    "python benchmarks/judge.py --no-such-option",
    "pip install 'atrex[nothing]'",
    "make no-such-target",
    "frobnicate --all",
])  # fmt: skip
def test_a_command_that_does_not_exist_is_noticed(line: str):
    with pytest.raises(Exception, match=r"\S"):
        check(line)


def test_every_reason_for_not_running_holds_for_some_command():
    texts = [c.text.split("  #")[0].strip() for page in PAGES for c in all_commands(page)]
    for reason, pattern in NOT_RUN:
        for each in re.split(r"\|(?![^(]*\))", pattern):
            assert any(re.search(each, text) for text in texts), f"{reason}: nothing matches {each}"


def test_continuations_quotes_and_comments_are_one_command():
    text = "# a comment\natrex eval a.py \\\n    --quick  # it's quick\natrex wiki search 'two\nlines'"
    found = [command.text for command in commands(Block("page.md", 1, None, text))]
    assert found == ["atrex eval a.py \\\n    --quick  # it's quick", "atrex wiki search 'two\nlines'"]


# ---- running them


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What readers of the pages have: runs, traces, a fleet and suites of it, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("made")

    def atrex(*arguments: str, fine: tuple[int, ...] = (0,)) -> None:
        command = [sys.executable, "-m", "atrex.cli.main", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode in fine, f"{arguments}: {done.stderr[-1500:]}"

    example(folder, "candidates/cpp/rms_norm.py", "rms_norm.py")
    example(folder, "candidates/cpp/rms_norm.py", "my_kernel.py")
    example(folder, "candidates/cpp/rms_norm.py", "my_kernels/rms_norm.py")
    for name in ("chat.json.gz", "search.json.gz", "config.json", "fleet.yaml"):
        example(folder, f"fleet/{name}", f"fleet/{name}")
        example(folder, f"fleet/{name}", name)
    for name in ("prof/chat.json.gz", "replay.json.gz", "capture.json.gz"):
        example(folder, "fleet/chat.json.gz", name)
    atrex("eval", "rms_norm.py", "--device", "cpu", "--quick", "--out", "runs/mine", fine=(0, 1))
    baseline = ("baseline", "torch", "--problem", "rms_norm", "--shapes", "0", "--device", "cpu", "--seeds", "1")
    atrex(*baseline, "--out", "runs/compiled", fine=(0, 1))
    for name in ("eval-claude", "eval-codex", "vanilla", "aka"):
        shutil.copytree(folder / "runs/mine", folder / "runs" / name)
    for name in ("fla", "baselines"):
        shutil.copytree(folder / "runs/compiled", folder / "runs" / name)
    named = (folder / "runs/fla/units.jsonl").read_text().replace('"name":"torch"', '"name":"fla"')
    (folder / "runs/fla/units.jsonl").write_text(named)  # fla runs on a GPU alone: the times of another stand in
    atrex("trace", "import", "prof/chat.json.gz", "--out", "data", "--app", "chat")
    shutil.copytree(folder / "data", folder / "traces")
    atrex("optimize", "init", "--problem", "rms_norm", "--dsl", "cpp", "--device", "cpu", "--dir", "campaign")
    for name in ("my-suite-may", "my-suite-june"):
        atrex("suite", "build", "--fleet", "fleet.yaml", "--out", name)
    return folder


NEEDS = {
    "README.md": ("rms_norm.py", "runs/mine", "runs/eval-claude", "fleet"),
    "CONTRIBUTING.md": ("fleet",),
    "docs/baselines.md": ("runs/mine", "runs/compiled", "runs/fla"),
    "docs/dsls.md": (),
    "docs/extending.md": ("fleet",),
    "docs/fleet.md": ("fleet.yaml", "config.json", "chat.json.gz", "search.json.gz", "my-suite-may", "my-suite-june"),
    "docs/report.md": (
        *(f"runs/{name}" for name in ("eval-claude", "eval-codex", "baselines", "vanilla", "aka")),
        "campaign",
        "traces",
    ),
    "docs/traces.md": ("prof", "replay.json.gz", "capture.json.gz"),
    "docs/tutorials/first-look.md": (),
}
"""What the reader of a page has before it begins, where that is anything."""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name, page in BY_NAME.items() if page.steps])
def test_the_page_does_what_it_says(name: str, made: Path, tmp_path: Path):
    pytest.importorskip("polars", reason="needs pip install 'atrex[traces]'")
    for need in NEEDS.get(name, ()):
        source, target = made / need, tmp_path / need
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
    if name == "docs/dsls.md":
        pytest.importorskip("triton", reason="needs pip install 'atrex[triton]'")
        example(tmp_path, "candidates/triton/rms_norm.py", "rms_norm.py")
    if name == "docs/tutorials/first-look.md":
        example(tmp_path, "candidates/cpp/rms_norm.py", "cpp/rms_norm.py")
    wrong = BY_NAME[name].run(tmp_path)
    assert not wrong, "\n\n".join(wrong)


def test_no_reason_swallows_what_can_be_run_anywhere():
    run = {
        c.text.split("  #")[0].split(" ")[1]
        for page in PAGES
        for c in all_commands(page)
        if c.text.startswith("atrex ") and why_not_run(c) is None
    }
    assert {
        "eval",
        "score",
        "repro",
        "suite",
        "trace",
        "wiki",
        "hardware",
        "compile",
        "compare",
        "baseline",
        "attacks",
        "generate",
        "report",
        "optimize",
        "agents",
        "doctor",
    } <= run
