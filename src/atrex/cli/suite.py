"""`atrex suite`: the problems that kernels are judged by."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atrex.problems.model import Problem, Shape

app = typer.Typer(no_args_is_help=True)

SuiteOption = Annotated[
    Path | None, typer.Option("--suite", help="A suite or problem folder; default: the shipped suite.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_problems(
    sort: Annotated[str, typer.Option(help="Order: name, or weight (heaviest first).")] = "name",
    suite: SuiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Operators with their shapes and weights."""
    from atrex.errors import UserError
    from atrex.problems.load import load_suite, suite_hash

    if sort not in ("name", "weight"):
        raise UserError(f"--sort {sort}: expected name or weight")
    loaded = load_suite(suite)
    rows = [
        {
            "operator": name,
            "phase": problem.metadata.phase,
            "dtype": problem.metadata.dtype,
            "shapes": len(problem.shapes),
            "held_out": len(problem.held_out),
            "weight": loaded.weights.get(name),
        }
        for name, problem in loaded.problems.items()
    ]
    if sort == "weight":
        rows.sort(key=lambda row: -(row["weight"] or 0))
    if as_json:
        print(json.dumps({"version": loaded.version, "hash": suite_hash(loaded.folder), "problems": rows}, indent=2))
        return
    covered = sum(row["weight"] or 0 for row in rows)
    print_table(
        ["operator", "phase", "dtype", "shapes", "held out", "weight"],
        [[*list(row.values())[:-1], "-" if row["weight"] is None else f"{row['weight']:.2%}"] for row in rows],
    )
    print(f"suite {loaded.version}: {len(rows)} operators, {sum(r['shapes'] for r in rows)} shapes", end="")
    whose = "published " if suite is None else ""
    print(f", {covered:.1%} of the {whose}weight" if loaded.weights else "")


@app.command()
def show(
    operator: Annotated[str, typer.Argument(metavar="OP", help="Operator name.")],
    shape: Annotated[str | None, typer.Option("--shape", metavar="ID", help="One shape in full.")] = None,
    suite: SuiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One operator: semantics, operands, shapes with their work and rooflines."""
    from atrex.problems.load import load_suite

    problem = load_suite(suite).problem(operator)
    shapes = list(problem.shapes.values()) if shape is None else [problem.shape(shape)]
    described = [_describe(problem, each) for each in shapes]
    meta = problem.metadata.model_dump(exclude={"shapes"})
    if as_json:
        document = {**meta, "folder": str(problem.folder), "shapes": {d["id"]: d for d in described}}
        print(json.dumps(document, indent=2))
        return
    print(f"{operator}: {problem.metadata.phase}, {problem.metadata.dtype}, in {problem.folder}")
    for what in ("inputs", "outputs"):
        print(f"  {what}: " + ", ".join(f"{name} {operand['dtype']}" for name, operand in meta[what].items()))
    if problem.metadata.constant:
        print(f"  constant between calls: {', '.join(problem.metadata.constant)}")
    if shape is not None:
        print(json.dumps(described[0], indent=2))
        return
    rows = [
        [d["id"], _brief(d["init_kwargs"], d["input_kwargs"]), f"{d['total_flops']:.4g}", f"{d['total_bytes']:.4g}"]
        + [_time(d["roofline_us"].get(chip)) for chip in ("H200", "MI308X")]
        for d in described
    ]
    print_table(["id", "shape", "FLOPs", "bytes", "H200 us", "MI308X us"], rows)


@app.command("generate-roofline")
def generate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A problem or suite folder; default: the shipped suite.")
    ] = None,
) -> None:
    """Write roofline.json from work.py and the cited chips."""
    from atrex.errors import UserError
    from atrex.problems.generate import generate_roofline, problem_folders

    found = problem_folders(folder)
    if not found:
        raise UserError(f"{folder}: no work.py in it or in its folders")
    for each in found:
        print(generate_roofline(each))


def _describe(problem: Problem, shape: Shape) -> dict[str, Any]:
    from atrex.problems.load import read_json

    work = problem.work(shape)
    entry = read_json(problem.folder / "roofline.json").get("shapes", {}).get(shape.id, {})
    meta = problem.metadata.shapes.get(shape.id)
    return {
        "id": shape.id,
        "init_kwargs": dict(shape.init_kwargs),
        "input_kwargs": dict(shape.input_kwargs),
        "flops": {engine: dict(by_dtype) for engine, by_dtype in work.flops.items()},
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        "total_flops": work.total_flops,
        "total_bytes": work.total_bytes,
        "roofline_us": entry.get("roofline_us", {}),
        "metadata": meta.model_dump() if meta else None,
    }


def not_run_lines(not_run: Mapping[str, str]) -> list[str]:
    """Shape ids by why they were not run, a line a reason; of those that were too large, each with its size."""
    from atrex.problems.lint import TOO_LARGE

    reasons: dict[str, list[str]] = {}
    for shape_id, why in sorted(not_run.items(), key=lambda item: (len(item[0]), item[0])):
        kind, _, size = why.partition(": ") if why.startswith(TOO_LARGE) else (why, "", "")
        reasons.setdefault(kind, []).append(f"{shape_id} ({size})" if size else shape_id)
    hint = {TOO_LARGE: f"{TOO_LARGE} (--all runs them)"}
    return [f"not run here: {hint.get(why, why)}: {len(i)} shapes: {', '.join(i)}" for why, i in reasons.items()]


def print_table(headers: list[str], rows: list[list[Any]]) -> None:
    """Print rows under headers, columns of numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, header in enumerate(headers):
        numeric = bool(rows) and i > 0 and all(_numeric(row[i]) for row in rows)
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)


def _numeric(cell: Any) -> bool:
    text = str(cell).rstrip("%")
    return text == "-" or text.replace(".", "", 1).replace("e+", "", 1).replace("e-", "", 1).isdigit()


def _brief(*kwargs: dict[str, Any]) -> str:
    """name=value of all, each once: what init_kwargs and input_kwargs agree on is one fact."""
    return " ".join(dict.fromkeys(f"{name}={value}" for each in kwargs for name, value in each.items()))


def _time(us: float | None) -> str:
    return "-" if us is None else f"{us:.4g}"
