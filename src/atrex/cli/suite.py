"""`atrex suite`: the problems that kernels are judged by."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atrex.problems.lint import Report
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
    print(f", {covered:.1%} of the published weight" if loaded.weights else "")


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


@app.command()
def validate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A problem or suite folder; default: the shipped suite.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Only this operator.")] = None,
    shapes: Annotated[str | None, typer.Option(help='Shape ids, such as "0,3-5"; default: all.')] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
    run_all: Annotated[bool, typer.Option("--all", help="Run shapes of any size on the CPU too.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 1,
    mutants: Annotated[bool, typer.Option("--mutants", help="Mutation testing: print the kill table.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that problems are sound: wrong outputs fail, the reference and an honest kernel pass, files agree.

    On the CPU, shapes over a budget of bytes and FLOPs are listed as not run. Exits with 1 when a check fails.
    """
    from atrex.evaluate.plan import select_shapes
    from atrex.hardware.detect import detect
    from atrex.problems.lint import CPU_BUDGET, UNLIMITED
    from atrex.problems.lint import validate as check
    from atrex.problems.load import load_suite
    from atrex.problems.release import refuse_edits

    detect(device)  # refuses a device that is not here
    loaded = load_suite(folder)
    refuse_edits(loaded)
    chosen = [loaded.problem(problem)] if problem else list(loaded.problems.values())
    budget = CPU_BUDGET if device == "cpu" and not run_all else UNLIMITED
    if mutants:
        from atrex.cli.suite_mutants import print_kill_tables

        selected = [(each, select_shapes(each, shapes)) for each in chosen]
        return print_kill_tables(selected, device, budget, seed, as_json)

    reports = []
    for each in chosen:

        def progress(shape_id: str, operator: str = each.operator) -> None:
            if sys.stderr.isatty():
                print(f"\r\x1b[K{operator} {shape_id}", end="", file=sys.stderr, flush=True)

        reports.append(check(each, select_shapes(each, shapes), device, budget, seed, progress))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if as_json:
        print(json.dumps([_report(report) for report in reports], indent=2))
    else:
        for report in reports:
            _print_report(report)
    if any(report.failures for report in reports):
        raise typer.Exit(1)


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


def _report(report: Report) -> dict[str, Any]:
    return {
        "operator": report.operator,
        "ran": report.ran,
        "not_run": report.not_run,
        "checks": len(report.findings),
        "failures": [{"shape": f.shape, "check": f.check, "detail": f.detail} for f in report.failures],
    }


def _print_report(report: Report) -> None:
    verdict = "sound" if not report.failures else f"{len(report.failures)} checks FAILED"
    print(f"{report.operator}: {verdict} ({len(report.findings)} checks, {len(report.ran)} shapes run)")
    for finding in report.failures:
        place = f"shape {finding.shape}" if finding.shape else "folder"
        print(f"  FAILED {place}: {finding.check}: {finding.detail}")
    if report.not_run:
        print(f"  not run here: too large: {len(report.not_run)} shapes (--all runs them)")
        for shape_id, why in report.not_run.items():
            print(f"    {shape_id}: {why}")


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
    return " ".join(f"{name}={value}" for each in kwargs for name, value in each.items())


def _time(us: float | None) -> str:
    return "-" if us is None else f"{us:.4g}"
