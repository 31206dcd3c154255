"""Five-file folders in the form of the published release, so that its evaluator and others can read our suite.

The form, as its data description states it: `_make_inputs(**input_kwargs)` in input.py, dtypes and origin by tensor in
metadata.json, `semantic_W_flops` by dtype, Q and `SOL_time_ms` by chip in roofline.json.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.problems.generate import roofline_entry
from atrex.problems.load import SHIPPED
from atrex.problems.model import Problem

LAYOUTS = ("atrex-bench",)
_OURS = "atrex.suite."
_MAKE_INPUTS = '''

def _make_inputs(**input_kwargs):
    """The inputs on the accelerator where there is one."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return make_inputs(**input_kwargs)
'''


def export_problem(problem: Problem, parent: Path, score: float | None = None) -> Path:
    """Write `problem` below `parent` as a folder of exactly five files that need nothing of this package.

    `score` is the operator's importance. Raises UserError when the folder is there already or cannot be written.
    """
    folder = parent / problem.operator
    files = {
        "reference.py": bundled(problem.folder / "reference.py"),
        "input.py": bundled(problem.folder / "input.py").rstrip("\n") + "\n" + _MAKE_INPUTS,
        "shapes.json": _json(
            {s.id: {"init_kwargs": s.init_kwargs, "input_kwargs": s.input_kwargs} for s in problem.shapes.values()}
        ),
        "metadata.json": _json(_metadata(problem, score)),
        "roofline.json": _json({"shapes": {s.id: _roofline(problem, s) for s in problem.shapes.values()}}),
    }
    if folder.exists():
        raise UserError(f"{folder}: exists already; export into an empty folder")
    try:
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    return folder


def bundled(path: Path) -> str:
    """The source of a folder's file with what it imports from the suite's shared modules put in its place."""
    return _bundle(path.read_text(encoding="utf-8"), set())


def _bundle(source: str, seen: set[str]) -> str:
    lines = source.splitlines(keepends=True)
    for node in sorted(ast.parse(source).body, key=lambda n: -n.lineno):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_OURS):
            name = node.module.removeprefix(_OURS)
            text = ""
            if name not in seen:
                seen.add(name)
                text = _bundle(_body((SHIPPED / f"{name}.py").read_text(encoding="utf-8")), seen)
            lines[node.lineno - 1 : node.end_lineno] = [text]
    return "".join(lines)


def _body(source: str) -> str:
    """A module without its docstring and its `from __future__` line, which may only stand first."""
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.lineno == 1
        if docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines).strip("\n") + "\n"


def _metadata(problem: Problem, score: float | None) -> dict[str, Any]:
    meta = problem.metadata
    shapes = {}
    for shape_id, shape in meta.shapes.items():
        entry: dict[str, Any] = {"description": shape.description, "call_count": shape.call_count}
        if shape.production:
            entry["production_performance"] = {
                chip: {"framework": production.backend, "performance_us": production.us}
                for chip, production in shape.production.items()
            }
        for total in shape.traced_total_us.values():
            entry["total_duration_us"] = total
        shapes[shape_id] = {key: value for key, value in entry.items() if value is not None}
    return {
        "id": f"atrex_{problem.operator}",
        "status": "trace_reference",
        "dtype": meta.dtype,
        "input_dtypes": {name: operand.dtype for name, operand in meta.inputs.items()},
        "output_dtypes": {name: operand.dtype for name, operand in meta.outputs.items()},
        "origin": {k: v for k, v in meta.provenance.model_dump().items() if k != "profiles" and v is not None},
        "phase": meta.phase,
        "importance_score": score,
        "shapes": shapes,
    }


def _roofline(problem: Problem, shape: Any) -> dict[str, Any]:
    entry = roofline_entry(problem.work(shape))
    flops: dict[str, int] = defaultdict(int)
    for by_dtype in entry["flops"].values():
        for dtype, count in by_dtype.items():
            flops[dtype] += count
    return {
        "semantic_W_flops": dict(flops),
        "semantic_Q_read_bytes": entry["bytes_read"],
        "semantic_Q_write_bytes": entry["bytes_written"],
        "SOL_time_ms": {chip: us / 1e3 for chip, us in entry["roofline_us"].items()},
    }


def _json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"
