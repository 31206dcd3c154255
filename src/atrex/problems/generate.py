"""Write roofline.json of a problem folder from its work.py and the cited chips. The file is never edited by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atrex.problems.load import SHIPPED, read_shapes
from atrex.problems.modules import load_module
from atrex.roofline.work import Work

CHIPS = ("H200", "H100", "H20", "A100", "L40S", "B200", "MI300X", "MI308X", "MI355X", "XPU-A")


def roofline_entry(work: Work) -> dict[str, Any]:
    """W, Q and the roofline time in microseconds by chip id of one shape, as roofline.json holds them."""
    from atrex.hardware.chip import load_chip
    from atrex.roofline.bound import roofline

    return {
        "flops": {engine: dict(by_dtype) for engine, by_dtype in work.flops.items()},
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        # Six digits: more would say nothing about a chip, and they keep the file the same on every machine.
        "roofline_us": {chip: float(f"{roofline(work, load_chip(chip)).us:.6g}") for chip in CHIPS},
    }


def generate_roofline(folder: Path) -> Path:
    """Write `folder`/roofline.json, one shape a line, and return its path.

    Reads only shapes.json and work.py, so it also mends a folder whose roofline.json is missing or stale. Raises
    UserError when one of the two cannot be used.
    """
    work = load_module(folder / "work.py").work
    entries = {
        shape.id: roofline_entry(work(shape.init_kwargs, shape.input_kwargs))
        for shape in read_shapes(folder / "shapes.json").values()
    }
    return write_roofline(folder, entries)


def write_roofline(folder: Path, entries: Mapping[str, Any]) -> Path:
    """Write `folder`/roofline.json from what `roofline_entry` gave for each shape, one a line; its path."""
    lines = ",\n".join(f"    {json.dumps(shape_id)}: {json.dumps(entry)}" for shape_id, entry in entries.items())
    path = folder / "roofline.json"
    path.write_text(f'{{\n  "shapes": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")
    return path


def problem_folders(path: Path | None = None) -> list[Path]:
    """Folders under `path` (default: the shipped suite) that hold a work.py; `path` itself when it holds one."""
    root = path if path is not None else SHIPPED
    return [root] if (root / "work.py").exists() else sorted(p.parent for p in root.glob("*/work.py"))
