"""The folder that the recorder and the recorded process share: a lock, a status and, at the end, the trace."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.traces.record.window import deliver


class SharedFolder:
    """A folder in the process's own view of the file system, its user's alone. `inside`: its path there.

    While the recorder lives it holds the lock; a process that finds it free gives up recording.
    """

    def __init__(self, root: Path, places: list[str], owner: tuple[int, int]) -> None:
        name, errors = f"atrex-record-{secrets.token_hex(6)}", []
        self._kept = False
        for place in dict.fromkeys(places):
            self.inside, self.path = f"{place.rstrip('/')}/{name}", root / place.lstrip("/") / name
            try:
                self.path.mkdir(mode=0o700)
                self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.geteuid() == 0:
                    os.chown(self.path, *owner)
                    os.chown(self.path / "lock", *owner)
                return
            except OSError as error:
                errors.append(f"{place}: {error.strerror}")
        raise UserError(f"no folder for the trace that the process could write: {'; '.join(errors)}")

    def status(self, name: str = "status.json") -> dict[str, Any]:
        """What the process said last; empty before it said anything."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return {}

    def deliver(self, name: str, out: Path) -> Path:
        """Bring a file of it to `out`. Raises UserError, and keeps the file, where that cannot be written."""
        self._kept = True
        found = deliver(self.path / name, out)
        self._kept = False
        return found

    def close(self) -> None:
        """Remove it; a process that still records finds the lock free and gives up."""
        if self._lock >= 0 and self._kept:
            (self.path / "kept").touch()  # or the process, which sees us gone, would clear it
            os.close(self._lock)
        elif self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
