"""What to record, and what comes of it."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from atrex.errors import UserError

SECONDS = 5.0  # the window where none is asked for
LONGEST = 600.0  # seconds: events of a busy process are kept in its memory until the end


@dataclass(frozen=True)
class Window:
    """How long to record: `seconds` at most, and until `steps` steps of the model are over where that is given.

    `stack`: with Python frames and module names, at several times the cost.
    """

    seconds: float = SECONDS
    steps: int | None = None
    stack: bool = False

    @classmethod
    def of(cls, seconds: float | None, steps: int | None, stack: bool) -> Window:
        """Raises UserError for a window that is none."""
        if seconds is None:
            seconds = LONGEST / 10 if steps else SECONDS
        if not 0 < seconds <= LONGEST:
            raise UserError(f"--seconds {seconds:g}: expected more than 0 and at most {LONGEST:g}")
        if steps is not None and steps < 1:
            raise UserError(f"--steps {steps}: expected at least 1")
        return cls(seconds, steps, stack)


@dataclass
class Recorded:
    """A finished recording: files in the order of their size, what was seen on the way, what to know about it."""

    files: list[Path]
    seconds: float | None = None
    steps: int | None = None
    notes: list[str] = field(default_factory=list)
    details: dict = field(default_factory=dict)

    def document(self) -> dict:
        return {
            "files": [str(path) for path in self.files],
            "seconds": self.seconds,
            "steps": self.steps,
            "notes": self.notes,
            **self.details,
        }


def check_out(out: Path) -> None:
    """That a trace can be written there, before anything is recorded. Raises UserError."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a directory: expected a file")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise UserError(f"--out {out}: {out.parent} is no directory that can be written")


def numbered(out: Path, number: int) -> Path:
    """`trace.json.gz` -> `trace.1.json.gz`; number 0 is the file itself."""
    if not number:
        return out
    stem, dot, rest = out.name.partition(".")
    return out.with_name(f"{stem}.{number}{dot}{rest}")


def deliver(source: Path, out: Path) -> Path:
    """Bring a trace to where it was asked for, packed or unpacked as its name says. The source is not kept."""
    packed, wanted = source.suffix == ".gz", out.suffix == ".gz"
    part = out.with_name(out.name + ".part")
    try:
        if packed == wanted:
            shutil.copyfile(source, part)
        else:
            with (
                (gzip.open if packed else open)(source, "rb") as old,
                (gzip.open if wanted else open)(part, "wb") as new,
            ):
                shutil.copyfileobj(old, new, 1 << 20)
        os.replace(part, out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"--out {out}: {error.strerror}; the trace is at {source}") from None
    with contextlib.suppress(OSError):
        source.unlink()
    return out
