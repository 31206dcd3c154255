"""One JSON file an operator, in which what was found on each kind of device stands beside the others'.

A result says where it was made in the entry of its device, or, when it is kept from another run, in its own `measured`.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from benchmarks.references.outcome import NOT_RUN, judge
from benchmarks.references.registry import all_checks

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
    """SHA-256 of reference.py's code without comments and docstrings: another one makes a record an old one.

    The same under every version of Python, whose dumps of syntax trees name what is empty or leave it out.
    """
    tree = ast.parse((problem.folder / "reference.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            body[0].value = ast.Constant("")
    return hashlib.sha256(_dump(tree).encode()).hexdigest()[:16]


def _dump(node: Any) -> str:
    """A syntax tree as text, without fields that hold nothing."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"
    return f"[{', '.join(map(_dump, node))}]" if isinstance(node, list) else repr(node)


def write(folder: Path, problem: Problem, device: torch.device, where: dict[str, Any], checks: list[dict]) -> Path:
    """Put the results of one kind of device into the operator's record, as `add` does."""
    found = where | {"reference": meaning(problem), "checks": checks}
    return add(folder, problem.operator, {device.type: found})


def add(folder: Path, operator: str, devices: dict[str, dict[str, Any]]) -> Path:
    """Add what was found, by kind of device, to the operator's record in `folder`.

    A result replaces an older one of the same implementation on the same kind of device. One that did not run
    replaces none that ran, an older one none that is newer, and what nobody runs any more goes. Which differences are
    known is said anew for all results, by the checks as they are now.
    """
    path = folder / f"{operator}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"operator": operator}
    checks = {(c.name, c.library): c for c in all_checks() if c.operator == operator}
    known = record.get("devices", {})
    merged = {kind: _merged(known[kind], new, checks) if kind in known else new for kind, new in devices.items()}
    record["devices"] = dict(sorted((known | merged).items()))
    for found in record["devices"].values():
        for result in found["checks"]:
            if result.get("cases") and _name(result) in checks:
                judge(checks[_name(result)], result)
            result.pop("old_adapter", None)
            if outdated(result):
                result["old_adapter"] = "the adapter was mended since: to be run again"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def measured(found: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Where, when and with what a result of a device's entry was made."""
    return result.get("measured") or {name: value for name, value in found.items() if name != "checks"}


def outdated(result: dict[str, Any]) -> bool:
    """Whether a result that ran came from a check's adapter that was mended since."""
    if not result.get("cases"):
        return False
    now = next((c.adapter for c in all_checks() if (c.name, c.library) == _name(result)), 1)
    return result.get("adapter", 1) < now


def _name(result: dict[str, Any]) -> tuple[str, str]:
    return result["implementation"], result["library"]


def _merged(old: dict[str, Any], new: dict[str, Any], checks: Container[tuple[str, str]]) -> dict[str, Any]:
    """The newer entry of a device, with each implementation's newest result that ran."""
    if old["date"] > new["date"]:
        old, new = new, old
    kept = {_name(r): r for r in old["checks"] if r["verdict"] != NOT_RUN and _name(r) in checks}
    found = []
    for result in new["checks"]:
        before = kept.pop(_name(result), None)
        keep = before and (
            result["verdict"] == NOT_RUN or measured(old, before)["date"] > measured(new, result)["date"]
        )
        found.append(_from(old, before) if keep else result)
    return new | {"checks": found + [_from(old, result) for result in kept.values()]}


def _from(found: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return result | {"measured": measured(found, result)}
