"""The run directory: run.json, one line in units.jsonl per finished unit, seeds that stay secret until it is closed."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.seeds import Seeds
from atrex.files import write
from atrex.scoring.records import UnitRecord
from atrex.scoring.runs import load_run, repair_units

_RUN, _UNITS, _SECRET = "run.json", "units.jsonl", "seeds.secret"
_SAME_ON_RESUME = (
    "suite_version",
    "suite_hash",
    "device",
    "device_name",
    "candidates",
    "planned",
    "seed_count",
    "budgets",
)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class RunDirectory:
    """An open run. Append-only: a crash loses at most the unit in flight."""

    def __init__(self, path: Path, about: dict[str, Any], seeds: Seeds, done: list[UnitRecord]):
        self.path, self.about, self.seeds, self.done = path, about, seeds, done
        self._units = (path / _UNITS).open("a", encoding="utf-8")

    @classmethod
    def create(cls, path: Path, about: dict[str, Any], seeds: Seeds) -> RunDirectory:
        """Start a new run in `path`. Raises UserError if it cannot be written or holds a run already."""
        if (path / _RUN).exists():
            raise UserError(f"{path}: holds a run already; --resume continues it, another --out starts a new one")
        about = about | {"created": now(), "seeds_commitment": seeds.commitment, "closed": None}
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "artifacts").mkdir(exist_ok=True)
            fd = os.open(path / _SECRET, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(seeds.secret.hex() + "\n")
            write(path / _RUN, json.dumps(about, indent=1))
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); give a writable folder with --out"
            ) from None
        return cls(path, about, seeds, [])

    @classmethod
    def resume(cls, path: Path, about: dict[str, Any]) -> RunDirectory:
        """Continue the run in `path`, if it judges the same thing. Raises UserError naming what differs."""
        loaded = load_run(path)
        for field in _SAME_ON_RESUME:
            if loaded.run.get(field) != about.get(field):
                raise UserError(
                    f"{path / _RUN}: {field} is {_short(loaded.run.get(field))}, this evaluation has "
                    f"{_short(about.get(field))}; --resume continues only the same evaluation"
                )
        try:
            secret = bytes.fromhex(loaded.run.get("seeds") or (path / _SECRET).read_text().strip())
        except (OSError, ValueError):
            raise UserError(
                f"{path / _SECRET}: missing or unreadable; a run cannot be resumed without its seeds"
            ) from None
        seeds = Seeds(secret)
        if seeds.commitment != loaded.run.get("seeds_commitment"):
            raise UserError(f"{path / _SECRET}: does not match seeds_commitment in run.json")
        repair_units(path)
        return cls(path, loaded.run, seeds, loaded.records)

    def add(self, record: UnitRecord) -> None:
        """Append one finished unit and make sure that it is on disk."""
        self._units.write(record.model_dump_json() + "\n")
        self._units.flush()
        os.fsync(self._units.fileno())

    def note(self, **fields: Any) -> None:
        """Add fields to run.json."""
        self.about |= fields
        write(self.path / _RUN, json.dumps(self.about, indent=1))

    def close(self, finished: bool) -> None:
        """End this session of the run; a finished one reveals its seeds."""
        self._units.close()
        if finished:
            self.note(closed=now(), seeds=self.seeds.secret.hex())
            (self.path / _SECRET).unlink(missing_ok=True)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
