"""One JSON file an operator, in which what was found on each kind of device stands beside the others'."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from atrex.evaluate.run import device_name, versions
from atrex.evaluate.rundir import now
from atrex.problems.model import Problem

RESULTS = Path(__file__).resolve().parents[2] / "results" / "references"


def about(device: torch.device, command: str) -> dict[str, Any]:
    """Where and with what a run was made."""
    import triton

    return {
        "device": device_name(device),
        "versions": versions() | {"triton": triton.__version__},
        "command": command,
        "date": now(),
    }


def meaning(problem: Problem) -> str:
    """SHA-256 of reference.py's code without comments and docstrings: another one makes a record an old one."""
    tree = ast.parse((problem.folder / "reference.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            body[0].value = ast.Constant("")
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def write(folder: Path, problem: Problem, device: torch.device, where: dict[str, Any], checks: list[dict]) -> Path:
    """Put the results of one kind of device into the operator's record; those of other devices stay."""
    path = folder / f"{problem.operator}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"operator": problem.operator}
    devices = record.setdefault("devices", {})
    devices[device.type] = where | {"reference": meaning(problem), "checks": checks}
    record["devices"] = dict(sorted(devices.items()))
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path
