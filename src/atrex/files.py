"""Writing a file that others may find."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a text file, ended by one newline, so that it is there whole or not at all, also after a crash.

    Raises OSError.
    """
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text.rstrip("\n") + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
