"""Code blocks of the project's pages, and the shell commands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")],
    key=lambda path: (path.parent != ROOT, path),
)
FENCE = re.compile(r'^(\s*)(```+|~~~+)\s*([\w+-]*)(?: title="([^"]+)")?\s*$')
SHELL = ("sh", "bash", "shell", "console")


@dataclass(frozen=True)
class Block:
    """A code block: its page, the line it begins at, the language of its fence (None: indented) and its text.

    One with a title is a file of that name, which the page says to save.
    """

    page: str
    line: int
    language: str | None
    text: str
    title: str | None = None

    @property
    def is_shell(self) -> bool:
        """Whether a reader types it: fenced as shell, or indented, which the pages keep for commands."""
        if self.title:
            return False
        return self.language in SHELL if self.language is not None else True

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A line of a shell block as a reader would paste it, continuations and quotes that go over lines included."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    """Fenced and indented code blocks of a Markdown page, in order. An indented one stands after an empty line."""
    page = path.relative_to(ROOT).as_posix()
    lines = path.read_text().splitlines()
    number, blank, in_list = 0, True, False
    while number < len(lines):
        line = lines[number]
        fence = FENCE.match(line)
        if fence:
            indent, mark, language, title = fence.groups()
            end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == mark)
            text = "\n".join(x.removeprefix(indent) for x in lines[number + 1 : end])
            yield Block(page, number + 2, language, text, title)
            number = end + 1
            blank = False
            continue
        if line.startswith("    ") and blank and not in_list:
            end = number
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
                end += 1
            text = "\n".join(x[4:] for x in lines[number:end]).rstrip()
            yield Block(page, number + 1, None, text)
            number = end
            blank = True
            continue
        if line.strip() and not line.startswith(" "):
            in_list = bool(re.match(r"([-*]|\d+\.) ", line))
        blank = not line.strip()
        number += 1


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block. Comments that stand alone are left out."""
    waiting, start = "", 0
    for offset, line in enumerate(block.text.splitlines()):
        if not waiting:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start = block.line + offset
        waiting = f"{waiting}\n{line}" if waiting else line
        if line.endswith("\\") or _open_quote(waiting):
            continue
        yield Command(block.page, start, waiting.removeprefix("$ "))
        waiting = ""
    if waiting:
        raise ValueError(f"{block.where}: a command that does not end: {waiting}")


def _open_quote(text: str) -> bool:
    quote = ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char == "#" and (i == 0 or text[i - 1].isspace()):
            end = text.find("\n", i)
            return False if end < 0 else _open_quote(text[end + 1 :])
        elif char in "'\"":
            quote = char
    return bool(quote)
