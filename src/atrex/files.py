"""Files that others may find, and files that others have written."""

from __future__ import annotations

import os
from pathlib import Path

from atrex.errors import UserError


def write(path: Path, text: str) -> None:
    """Write a text file, ended by one newline, as `write_bytes` does. Raises OSError."""
    write_bytes(path, (text.rstrip("\n") + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a crash. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def read_source(path: Path) -> str:
    """The text of a Python source that a user names. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as Python source ({error})") from None
