"""A table DSL x target, and the record that it is kept in."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from atrex.compile.outcome import Outcome, counts

SCHEMA = 1
_PACKAGES = ("atrex", "torch", "triton", "nvidia-cutlass-dsl", "flydsl")
_PROGRAMS = ("nvcc", "ld.lld-19", "ld.lld", "g++")


def table(outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, Any]]]:
    """`counts` by DSL and target, and the candidates that they are over."""
    cells: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        cells.setdefault(outcome.dsl, {}).setdefault(outcome.target, []).append(outcome)
    return {
        dsl: {
            target: counts(found) | {"candidates": len({o.candidate for o in found})}
            for target, found in sorted(by_target.items())
        }
        for dsl, by_target in sorted(cells.items())
    }


def record(outcomes: Sequence[Outcome], command: str, seconds: float) -> dict[str, Any]:
    """The table with versions, command and date; per candidate and target its counts, and every reason given.

    Reasons are grouped: one entry for all shapes of a candidate that ended alike.
    """
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault((outcome.candidate, outcome.target), []).append(outcome)
    return {
        "schema": SCHEMA,
        "kind": "compile",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": versions(),
        "seconds": round(seconds, 1),
        "table": table(outcomes),
        "candidates": [
            {
                "candidate": candidate,
                "sha256": _sha256(candidate),
                "operator": found[0].operator,
                "dsl": found[0].dsl,
                "target": target,
            }
            | counts(found)
            | {"seconds": round(sum(o.seconds for o in found), 1), "reasons": _reasons(found)}
            for (candidate, target), found in rows.items()
        ],
    }


def _sha256(candidate: str) -> str | None:
    """What was compiled, so that a record can be held to it; None where the file is gone."""
    try:
        return hashlib.sha256(Path(candidate).read_bytes()).hexdigest()
    except OSError:
        return None


def versions() -> dict[str, str]:
    """Versions of the packages and compilers that take part, as far as they are here."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    for program in _PROGRAMS:
        if path := shutil.which(program):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
            numbers = re.findall(r"\d+\.\d+(?:\.\d+)*", said)
            if numbers:
                found[program] = numbers[0]
    return found


def _reasons(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.reason:
            grouped.setdefault((outcome.status, outcome.reason), []).append(outcome.shape)
    return [{"status": status, "reason": reason, "shapes": shapes} for (status, reason), shapes in grouped.items()]
