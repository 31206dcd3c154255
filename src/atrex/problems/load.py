"""Read problem folders and suites from disk; every defect is one UserError line naming file, field and expectation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atrex.errors import UserError, first_fault
from atrex.problems.foreign import foreign_metadata, foreign_work, is_foreign
from atrex.problems.metadata import Metadata
from atrex.problems.model import Problem, Shape, Suite
from atrex.problems.release import EDITED, edited
from atrex.roofline.work import ENGINES, Work
from atrex.scoring.weights import normalize

SHIPPED = Path(__file__).resolve().parent.parent / "suite"
REQUIRED = ("reference.py", "input.py", "shapes.json", "metadata.json", "roofline.json")


def load_problem(folder: str | Path) -> Problem:
    """Load one five-file folder and check it against itself.

    Raises UserError for a missing file, a shapes.json or metadata.json of the wrong form, and a roofline.json that
    does not match work.py. Nothing of torch is imported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such problem folder")
    for name in REQUIRED:
        if not (folder / name).is_file():
            raise UserError(f"{folder.name}/{name}: missing file: a problem folder holds {', '.join(REQUIRED)}")
    raw = read_json(folder / "metadata.json")
    foreign = is_foreign(raw)
    problem = Problem(
        operator=folder.name if foreign else str(raw.get("operator", folder.name)),
        folder=folder,
        metadata=foreign_metadata(folder.name, raw) if foreign else _metadata(folder, raw),
        shapes=read_shapes(folder / "shapes.json"),
        held_out=read_shapes(folder / "held_out.json") if (folder / "held_out.json").exists() else {},
        foreign=foreign,
        declared_work=_declared_work(folder, foreign),
    )
    if not foreign:
        check_roofline(problem)
    return problem


def load_suite(path: str | Path | None = None) -> Suite:
    """Load a suite folder (default: the shipped one), or a single problem folder as a suite of one.

    `suite.json` carries the version, `weights.json` the importance scores; both are optional in a suite of your own
    (version "unversioned", no weights). Raises UserError as `load_problem` does, and when there is no problem in it.
    """
    folder = Path(path) if path is not None else SHIPPED
    if not folder.is_dir():
        raise UserError(f"{folder}: no such suite folder")
    if (folder / "shapes.json").exists() or (folder / "reference.py").exists():
        problem = load_problem(folder)
        return Suite(folder, "unversioned", {problem.operator: problem}, {})
    found = [load_problem(sub) for sub in sorted(folder.iterdir()) if (sub / "shapes.json").exists()]
    if not found:
        raise UserError(f"{folder}: no problem folder in it: expected folders that hold {', '.join(REQUIRED)}")
    about = read_json(folder / "suite.json") if (folder / "suite.json").exists() else {}
    weights = _weights(folder / "weights.json") if (folder / "weights.json").exists() else {}
    version = str(about.get("version", "unversioned"))
    if edited(folder, version):
        version += EDITED  # whatever is run from here on is not that release
    return Suite(folder, version, {p.operator: p for p in found}, weights)


def suite_hash(path: str | Path | None = None) -> str:
    """SHA-256 over the paths and contents of every file of a suite, so that a run can say exactly what it judged."""
    folder = Path(path) if path is not None else SHIPPED
    digest = hashlib.sha256()
    files = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".pyc")
    for file in sorted(files, key=lambda p: p.relative_to(folder).as_posix()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def check_roofline(problem: Problem) -> None:
    """Raise UserError where roofline.json and work.py disagree on any shape's W or Q, or on the set of shapes."""
    if not (problem.folder / "work.py").exists():
        return
    label, remedy = f"{problem.folder.name}/roofline.json", "regenerate it with `atrex suite generate-roofline`"
    if set(problem.declared_work) != set(problem.shapes):
        raise UserError(f"{label}: shapes differ from those of shapes.json: {remedy}")
    for shape_id, shape in problem.shapes.items():
        declared, derived = problem.declared_work[shape_id], problem.work(shape)
        for field in ("flops", "bytes_read", "bytes_written"):
            said, meant = getattr(declared, field), getattr(derived, field)
            if said != meant:
                raise UserError(f"{label}: shape {shape_id}: {field} is {said}, work.py says {meant}: {remedy}")


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises UserError, naming file and position, when it is not valid JSON."""
    label = f"{path.parent.name}/{path.name}"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{label}: not valid JSON: {error}") from None


def _metadata(folder: Path, raw: Mapping[str, Any]) -> Metadata:
    try:
        return Metadata.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{folder.name}/metadata.json: {first_fault(error, 'metadata')}") from None


def read_shapes(path: Path) -> dict[str, Shape]:
    """The shapes of a shapes.json or held_out.json by id. Raises UserError naming the file, shape and key."""
    label = f"{path.parent.name}/{path.name}"
    raw = read_json(path)
    if not isinstance(raw, dict) or not raw:
        raise UserError(f"{label}: expected a non-empty object of shapes by id")
    shapes = {}
    for shape_id, entry in raw.items():
        if not isinstance(entry, dict):
            raise UserError(f"{label}: shape {shape_id}: expected an object, got {type(entry).__name__}")
        for key in ("init_kwargs", "input_kwargs"):
            if key not in entry:
                raise UserError(f"{label}: shape {shape_id}: missing key {key!r}")
        # One published shape has null for "no arguments".
        init = {} if entry["init_kwargs"] is None else entry["init_kwargs"]
        for key, value in (("init_kwargs", init), ("input_kwargs", entry["input_kwargs"])):
            if not isinstance(value, dict):
                raise UserError(f"{label}: shape {shape_id}: {key}: expected an object, got {type(value).__name__}")
        shapes[shape_id] = Shape(shape_id, init, entry["input_kwargs"])
    return shapes


def _declared_work(folder: Path, foreign: bool) -> dict[str, Work]:
    label = f"{folder.name}/roofline.json"
    raw = read_json(folder / "roofline.json")
    entries = raw.get("shapes") if isinstance(raw, dict) else None
    if not isinstance(entries, dict):
        if foreign:
            return {}
        raise UserError(f"{label}: shapes: expected an object by shape id")
    if foreign:
        read = {shape_id: foreign_work(entry) for shape_id, entry in entries.items() if isinstance(entry, dict)}
        return {shape_id: work for shape_id, work in read.items() if work is not None}
    return {shape_id: _work(f"{label}: shape {shape_id}", entry) for shape_id, entry in entries.items()}


def _work(label: str, entry: Any) -> Work:
    if not isinstance(entry, dict):
        raise UserError(f"{label}: expected an object, got {type(entry).__name__}")
    flops = entry.get("flops")
    if not isinstance(flops, dict) or any(e not in ENGINES or not isinstance(d, dict) for e, d in flops.items()):
        raise UserError(f"{label}: flops: expected {{engine: {{dtype: FLOPs}}}} with engines {' and '.join(ENGINES)}")
    counts = [entry.get("bytes_read"), entry.get("bytes_written"), *(n for d in flops.values() for n in d.values())]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in counts):
        raise UserError(f"{label}: flops, bytes_read, bytes_written: expected non-negative integers")
    return Work(flops, entry["bytes_read"], entry["bytes_written"])


def _weights(path: Path) -> dict[str, float]:
    label = f"{path.parent.name}/{path.name}"
    raw = read_json(path)
    scores = raw.get("importance") if isinstance(raw, dict) else None
    if not isinstance(scores, dict) or not scores:
        raise UserError(f"{label}: importance: expected an object of scores by operator")
    for operator, score in scores.items():
        if not isinstance(score, (int, float)) or isinstance(score, bool) or score < 0:
            raise UserError(f"{label}: importance.{operator}: expected a non-negative number")
    declared, total = raw.get("sum", 1), math.fsum(scores.values())
    if not isinstance(declared, (int, float)) or abs(total - declared) > 1e-6:
        raise UserError(f"{label}: importance: sums to {total:.6g}, expected {declared} (1, or what `sum` says)")
    try:
        return normalize(scores)
    except ValueError as error:
        raise UserError(f"{label}: importance: {error}") from None
