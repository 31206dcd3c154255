"""What an agent gets to see of a problem, and the one file that is taken back."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from atrex.problems.export import bundled
from atrex.problems.model import Problem, Shape

LARGEST = 256 << 10  # bytes of a candidate


class NoCandidate(Exception):
    """The workspace holds no candidate. One line that says what is there instead."""


def lay_out(
    root: Path, problem: Problem, prompt: str, chosen: Mapping[str, Shape] | None = None, keep: bool = False
) -> None:
    """Make `root/workspace` anew, with reference.py, input.py, shapes.json and PROMPT.md and nothing else.

    With `keep` what else lies there stays, and these four are put back as they were. It is to be called when nothing of
    the agent runs any more.

    What the references share is put into them: they need no package. Of shapes the listed ones are shown, not the
    held-out ones, and only those `chosen` where some are. Raises OSError.
    """
    folder = root / "workspace"
    if keep:
        shutil.rmtree(root / "home", ignore_errors=True)
    else:
        shutil.rmtree(root, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=keep)
    shown = (problem.shapes if chosen is None else chosen).values()
    shapes = {s.id: {"init_kwargs": s.init_kwargs, "input_kwargs": s.input_kwargs} for s in shown}
    files = {
        "reference.py": bundled(problem.folder / "reference.py"),
        "input.py": bundled(problem.folder / "input.py"),
        "shapes.json": _shapes(shapes),
        "PROMPT.md": prompt.rstrip("\n") + "\n",
    }
    for name, text in files.items():
        _put(folder / name, text)


def _put(path: Path, text: str) -> None:
    """Write a new file. What an agent has put in its place goes first: a link would lead the write out of here."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _shapes(shapes: dict) -> str:
    rows = [f"  {json.dumps(key)}: {json.dumps(value, default=dict)}" for key, value in shapes.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def collect(root: Path, output: str) -> str:
    """The source that an agent has left as `output`. Raises NoCandidate for anything but a plain text file.

    To be called when nothing of the agent runs any more. Links are not followed: they could lead out.
    """
    try:
        fd = os.open(root / "workspace" / output, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NoCandidate(f"it left no {output}") from None
    except OSError as error:
        raise NoCandidate(f"{output} is no plain file ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NoCandidate(f"{output} is no plain file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise NoCandidate(f"{output} is larger than {LARGEST >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise NoCandidate(f"{output} is not UTF-8 text") from None
    if not text.strip():
        raise NoCandidate(f"{output} is empty")
    return text
