"""Which commands of the pages are run here, what they find in their folder, and why the others are only parsed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import ROOT, Block, Command, blocks, commands

NOT_RUN = (
    ("needs a GPU", r"--device cuda|--gpu\b|--chip |atrex profile|wiki advise"),
    (
        "needs an agent's program, a model or a person",
        r"--agent (claude|codex|api:|manual|'command:./)|with-claude|runs/claude",
    ),
    ("needs a library of others", r"baseline fla"),
    ("needs the network", r"^(pip|npm|curl|docker|git) |add-source|--source flashmla"),
    (
        "needs a process, an engine or a cluster",
        r"trace record|decode\.json\.gz|serve-judge|atrex serve|atrex mcp|--engine ray",
    ),
    ("needs a program that is not Atrex's", r"^(duckdb|export|claude|ray) "),
    ("stands for what the reader has", r"\b(NAME|OP|CANDIDATES)\b|\.\.\.|908_kernel_trace|^atrex wiki check --cards"),
    ("changes the project itself", r"generate-roofline$|my-kernel|my_kernels/rms_norm"),
    (
        "takes minutes: the tests of the part run it",
        r"^make|^python (-m|benchmarks/)|^atrex demo|validate my-suite( |$)"
        r"|eval my_kernels|compile (rms_norm\.py( +#|$)|rms_norm.py --target sm|examples)|tuner(:60| --dsl)|--mutants",
    ),
)
"""Why a command is parsed and not run: a reason, and the pattern of the commands that it holds for."""
BY_HAND = {
    "docs/optimize.md": "by hand, plans and kernels between the steps; tutorials/optimize.md runs a whole campaign"
}
"""Pages whose commands are only parsed."""
UNSOUND_IS_FINE = re.compile(r"^atrex (eval|score|baseline|attacks|compare|report)")
"""These exit with 1 where a unit ended `unstable`, which load on the machine can do."""
SECONDS = 900


def why_not_run(command: Command) -> str | None:
    """Why a command is not run here; None if it is."""
    if command.page in BY_HAND:
        return BY_HAND[command.page]
    text = command.text.split("  #")[0].strip()
    return next((reason for reason, pattern in NOT_RUN if re.search(pattern, text)), None)


@dataclass
class Page:
    """A page as a reader works through it: files that it says to save, and steps in order."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def blocks(self) -> list[Block]:
        return list(blocks(self.path))

    @property
    def steps(self) -> list[Command | Block]:
        """Commands that are run and Python that uses Atrex, in order."""
        found: list[Command | Block] = []
        for block in self.blocks:
            if block.title:
                continue
            if block.is_shell:
                found += [command for command in commands(block) if why_not_run(command) is None]
            elif block.language == "python" and "import atrex" in block.text:
                found.append(block)
        return found

    def run(self, folder: Path) -> list[str]:
        """Do what the page says in `folder`; what went wrong, a text for each step."""
        for block in self.blocks:
            if block.title:
                (folder / block.title).write_text(block.text + "\n")
        return [wrong for step in self.steps if (wrong := _run(step, folder))]


def _run(step: Command | Block, folder: Path) -> str | None:
    command = ["bash", "-c", step.text] if isinstance(step, Command) else [sys.executable, "-c", step.text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{step.where}: not done after {SECONDS} s: {step.text}"
    fine = (0, 1) if UNSOUND_IS_FINE.search(step.text) and "error:" not in done.stderr else (0,)
    if done.returncode in fine:
        return None
    return f"{step.where}: exit status {done.returncode}: {step.text}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


def example(folder: Path, source: str, target: str) -> None:
    """A file of examples/ as `target` in the folder."""
    (folder / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "examples" / source, folder / target)
