"""Whether a command line is one that the programs named in it would take, without running any of them."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

from atrex.cli.main import app
from tests.docs.blocks import ROOT

OTHERS = {
    "cd": "the shell's",
    "chmod": "the system's",
    "claude": "an agent's program",
    "cp": "the system's",
    "curl": "the system's",
    "docker": "needs an engine for containers",
    "duckdb": "a program that Atrex does not need",
    "export": "the shell's",
    "git": "the system's",
    "npm": "an agent's installer",
    "ray": "starts nodes of a cluster",
}
"""Programs that are not this project's: why their arguments are not looked at."""


def simple_commands(line: str) -> list[list[str]]:
    """The words of each simple command of a shell line; comments and redirections are dropped."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if word and set(word) <= set("();<>|&"):
            if set(word) & set("<>"):
                redirected = True
            else:
                found.append([])
        elif redirected:
            redirected = False
        else:
            found[-1].append(word)
    return [words for words in found if words]


def check(line: str) -> None:
    """Raise ValueError or a usage error of the CLI, with a line that says what is wrong."""
    for words in simple_commands(line):
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if not words:
            continue
        program, arguments = words[0], words[1:]
        if program == "atrex":
            parse(cli(), arguments)
        elif program == "make":
            _check_make(arguments)
        elif program in ("pip", "pip3"):
            _check_pip(arguments)
        elif program in ("python", "python3"):
            _check_python(arguments)
        elif program not in OTHERS:
            raise ValueError(f"{program}: no program that the pages are known to use")


@cache
def cli() -> Any:
    """The whole command line, built once."""
    return get_command(app)


def parse(command: Any, arguments: list[str], name: str = "atrex") -> None:
    """Let every command on the way to the last subcommand parse its options and arguments, and run nothing.

    Raises the CLI's own usage error where an option does not exist, an argument is missing or a value has another type.
    """
    parent = None
    while hasattr(command, "resolve_command"):
        if not arguments:
            raise ValueError(f"{name}: a group, expected one of its commands")
        parent = command.make_context(name, list(arguments), parent=parent)
        name, command, arguments = command.resolve_command(parent, [*parent._protected_args, *parent.args])
    if "..." in arguments:  # stands for options that the page has shown before
        known = {option for parameter in command.params for option in parameter.opts}
        unknown = [word for word in arguments if word.startswith("--") and word not in known]
        if unknown:
            raise ValueError(f"{name}: no option {unknown[0]}")
        return
    command.make_context(name, list(arguments), parent=parent)


def _check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in arguments:
        name, is_variable = word.split("=")[0], "=" in word
        if not re.search(rf"\b{name}\b" if is_variable else rf"^{re.escape(name)}:", makefile, re.MULTILINE):
            raise ValueError(f"make {word}: no such {'variable' if is_variable else 'target'} in the Makefile")


def _check_pip(arguments: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in arguments:
        asked = re.match(r"(?:atrex|\.)\[([\w,]+)\]", word)
        for extra in asked.group(1).split(",") if asked else ():
            if extra not in extras:
                raise ValueError(f"pip install {word}: no extra {extra}")


def _check_python(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        module, arguments = arguments[1], arguments[2:]
        if module.split(".")[0] not in ("benchmarks", "tests", "atrex"):
            paths = [word for word in arguments if "/" in word]
            if missing := [path for path in paths if not (ROOT / path).exists()]:
                raise ValueError(f"python -m {module}: no {missing[0]}")
            return
        path = ROOT / module.replace(".", "/")
        sources = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    elif arguments[0] == "-c":
        compile(arguments[1], "-c", "exec")
        return
    elif "/" not in arguments[0]:  # a file that an earlier command of the page has written
        return
    else:
        sources, arguments = [ROOT / arguments[0]], arguments[1:]
    if not all(source.is_file() for source in sources):
        raise ValueError(f"python {sources[0].relative_to(ROOT)}: no such file")
    text = "".join(_text(source) for source in sources)
    for word in arguments:
        if word.startswith("--") and f'"{word.split("=")[0]}"' not in text:
            raise ValueError(f"python {sources[0].relative_to(ROOT)}: no option {word}")


@cache
def _text(path: Path) -> str:
    return path.read_text()
