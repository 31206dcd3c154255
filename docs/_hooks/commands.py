"""MkDocs hook: the reference of commands, made of the CLI itself whenever the site is built."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files
from typer.main import get_command

from atrex.cli.main import app

PAGE = "commands.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the page."""
    files.append(File.generated(config, PAGE, content=reference()))
    return files


def reference() -> str:
    """The page's Markdown: every command with its usage, text, arguments and options."""
    head = (
        "# Commands\n\nMade of the programs' own help when this site was built. `atrex COMMAND --help` prints the same."
    )
    return "\n\n".join([head, *_sections(get_command(app), "atrex", None)]) + "\n"


def _sections(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
    if hasattr(command, "list_commands"):
        if parent is not None:
            yield f"## {name}\n\n{_text(command.help)}"
        shown = (command.get_command(context, child) for child in command.list_commands(context))
        for child in sorted((c for c in shown if not c.hidden), key=lambda c: (hasattr(c, "list_commands"), c.name)):
            yield from _sections(child, f"{name} {child.name}", context)
        return
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    level = "##" if name.count(" ") == 1 else "###"
    yield f"{level} {name}\n\n`{usage}`\n\n{_text(command.help)}"
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter))]
    yield "\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows])


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
        return None
    if parameter.param_type_name == "argument":
        label = f"`{(parameter.metavar or parameter.name.upper())}`"
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        label = ", ".join(f"`{each}{value}`" for each in names)
    default = parameter.default
    shown = "needed" if parameter.required else "" if default in (None, False) else f"`{default}`"
    return f"| {_cell(label)} | {_cell(parameter.help or '')} | {shown} |"


def _text(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b\n", "").replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
