"""Calibration records: what was measured, on what, how, and how much it varied."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atrex.errors import UserError

SCHEMA = 1


def measurement(rounds: Sequence[Sequence[float]], unit: str, **more: Any) -> dict[str, Any]:
    """One measurement from rounds of repeated runs, as rates (larger is better) in `unit`.

    `best` is over all runs, `median` over all runs, `spread` how far the rounds' own bests lie apart: 1 - median/best.
    """
    bests = [max(values) for values in rounds if values]
    every = [value for values in rounds for value in values]
    best = max(bests)
    return {
        "unit": unit,
        "best": best,
        "median": statistics.median(every),
        "spread": 1 - statistics.median(bests) / best,
        "n": len(every),
        **more,
    }


def durations(seconds: Sequence[float], **more: Any) -> dict[str, Any]:
    """One measurement of repeated durations, in microseconds; `best` is the shortest."""
    us = [value * 1e6 for value in seconds]
    best, middle = min(us), statistics.median(us)
    return {"unit": "us", "best": best, "median": middle, "spread": 1 - best / middle, "n": len(us), **more}


def header(device: str, chip: str, name: str) -> dict[str, Any]:
    """The part of a record that says what, where, with which versions, by which command and when."""
    return {
        "schema": SCHEMA,
        "kind": "calibration",
        "device": device,
        "chip": chip,
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"atrex hardware calibrate --device {device}",
        "versions": {
            "python": platform.python_version(),
            "system": platform.system(),
            **{package: _version(package) for package in ("atrex", "torch", "triton")},
        },
    }


def _version(package: str) -> str | None:
    module = sys.modules.get(package)
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record whole or not at all. Raises UserError when the place is not writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".json", dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise UserError(f"{path}: cannot write the calibration record ({error.strerror})") from None


def read_record(path: Path) -> dict[str, Any]:
    """Read a calibration record. Raises UserError when the file is missing or not such a record."""
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(record, dict) or record.get("kind") != "calibration" or record.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a calibration record of schema {SCHEMA}")
    return record
