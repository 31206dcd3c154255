"""Reading a run directory: `run.json` and `units.jsonl`, as the judge leaves them, finished or interrupted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from atrex.errors import UserError, first_fault
from atrex.scoring.records import CATEGORIES, ERROR_CATEGORIES, Status, UnitRecord, Verdict
from atrex.scoring.units import unit_key

HELD_OUT_ID = re.compile(r"h\d+")
RUN_FILE, UNITS_FILE = "run.json", "units.jsonl"


@dataclass(frozen=True)
class Run:
    """A run directory as read.

    `records` holds one record a unit, the last written, in the order in which units first appear. `duplicates` counts
    the earlier records that were dropped for it. `truncated` counts bytes of an unfinished last line, left by a crash.
    `path` is None for a run that was not kept.
    """

    path: Path | None
    run: dict[str, Any]
    records: list[UnitRecord]
    truncated: int = 0
    duplicates: int = 0
    notes: list[str] = field(default_factory=list)


def read_run(path: Path | str) -> tuple[dict[str, Any], list[UnitRecord]]:
    """`run.json` and one record a unit of a run directory; see `load_run` for what was repaired on the way."""
    loaded = load_run(path)
    return loaded.run, loaded.records


def load_run(path: Path | str) -> Run:
    """Read a run directory. A missing `units.jsonl` is a run that finished no unit.

    Raises UserError if the directory or `run.json` is missing or is not a JSON object, or if a line other than an
    unfinished last one is not a unit record; the message names the file, the line and the field.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: not a run directory, expected a folder with {RUN_FILE} and {UNITS_FILE}")
    run = _run_json(path / RUN_FILE)
    units = path / UNITS_FILE
    try:
        data = units.read_bytes() if units.exists() else b""
    except OSError as e:
        raise UserError(f"{units}: cannot be read ({e.strerror})") from None
    lines = data.split(b"\n")
    latest: dict[tuple, UnitRecord] = {}
    read = truncated = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number == len(lines) and not _is_json(line):
            truncated = len(line)  # only an append that was cut short leaves a last line without its newline
            continue
        record = _record(line, f"{units}:{number}")
        latest[unit_key(record)] = record
        read += 1
    duplicates = read - len(latest)
    notes = []
    if truncated:
        notes.append(f"{units}: 1 unfinished last line ({truncated} bytes) left out: that unit was not recorded")
    if duplicates:
        notes.append(f"{units}: {duplicates} repeated unit record{'s' * (duplicates > 1)}, the last one of each counts")
    notes += _changed(latest.values(), units)
    return Run(path, run, list(latest.values()), truncated, duplicates, notes)


def repair_units(path: Path | str) -> int:
    """Make a run directory's `units.jsonl` safe to append to; returns the bytes cut off.

    An unfinished last line is cut off; a whole one that lacks its newline gets it.
    """
    units = Path(path) / UNITS_FILE
    if not units.exists():
        return 0
    with units.open("r+b") as f:
        data = f.read()
        last = data[data.rfind(b"\n") + 1 :]
        if not last:
            return 0
        if _is_json(last):
            f.write(b"\n")
            return 0
        f.truncate(len(data) - len(last))
        return len(last)


def group_records(run: Mapping[str, Any], records: Sequence[UnitRecord]) -> dict[str, list[UnitRecord]]:
    """Records by candidate set, in the order of first appearance.

    A set is an entry of `run["candidates"]`: a file, or a directory that stands for every file below it (the entry is
    its path, or an object with one under `path`). A record of no entry is a set of its own under its candidate's name.
    Records of several chips are never one set: the label then ends with the chip. Devices of one chip are.
    Records of baselines are left out: `atrex.scoring.baselines.baseline_groups` has them.
    """
    records = [r for r in records if r.baseline is None]
    entries = [PurePath(e) for c in run.get("candidates") or () if isinstance(e := _entry(c), str) and e]
    several = len({r.chip for r in records}) > 1
    groups: dict[str, list[UnitRecord]] = {}
    for r in records:
        candidate = PurePath(r.candidate)
        inside = [e for e in entries if candidate.is_relative_to(e)]
        label = str(max(inside, key=lambda e: len(e.parts))) if inside else r.candidate
        groups.setdefault(f"{label} on {r.chip}" if several else label, []).append(r)
    return groups


def planned_units(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (operator, shape) pairs of `run["planned"]`, without held-out shapes ("h0", ...) and malformed entries."""
    pairs = [(str(p[0]), str(p[1])) for p in run.get("planned") or () if isinstance(p, list | tuple) and len(p) == 2]
    return [p for p in pairs if not HELD_OUT_ID.fullmatch(p[1])]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _entry(candidate: Any) -> Any:
    return candidate.get("path") if isinstance(candidate, Mapping) else candidate


def _run_json(path: Path) -> dict[str, Any]:
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing, expected the run's description written by `atrex eval`") from None
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from None
    except ValueError as e:
        raise UserError(f"{path}: not JSON ({e})") from None
    if not isinstance(run, dict):
        raise UserError(f"{path}: expected a JSON object")
    return run


def _record(line: bytes, where: str) -> UnitRecord:
    try:
        record = UnitRecord.model_validate_json(line)
    except ValidationError as e:
        raise UserError(f"{where}: {first_fault(e, 'record')}") from None
    if wrong := _verdict_fault(record.verdict):
        raise UserError(f"{where}: verdict: {wrong}")
    s = record.roofline.S if record.roofline else None
    if record.verdict.status == Status.PASSED and s is not None and not 0 < s <= 1:
        raise UserError(f"{where}: roofline.S: {s:g}, expected over 0 and at most 1 in a passed unit")
    return record


def _verdict_fault(verdict: Verdict) -> str | None:
    """What makes a verdict one that no unit can end with, or None."""
    if verdict.status == Status.FAILED:
        known = CATEGORIES.get(verdict.stage, ()) if verdict.stage else ()
        if verdict.category not in known:
            return f"failed at stage {verdict.stage} with category {verdict.category}, which is none of that stage's"
    elif verdict.status == Status.ERROR:
        if verdict.category not in ERROR_CATEGORIES:
            return f"error with category {verdict.category}, expected one of {', '.join(ERROR_CATEGORIES)}"
    elif verdict.status == Status.PASSED and (verdict.stage or verdict.category):
        return "passed with a stage or category, expected none"
    return None


def _changed(records: Any, units: Path) -> list[str]:
    versions: dict[tuple[str, str], set[str]] = {}
    for r in records:
        versions.setdefault((r.candidate, r.operator), set()).add(r.candidate_sha256)
    return [
        f"{units}: {candidate} changed during the run, {len(found)} versions of it were judged on {operator}"
        for (candidate, operator), found in versions.items() if len(found) > 1
    ]
