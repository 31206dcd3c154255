"""`atrex trace`: which operators the device time of serving traces goes to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atrex.cli import trace_record
from atrex.errors import UserError

# Everything else is imported where it is used: polars takes half a second.
if TYPE_CHECKING:
    from atrex.traces.pipeline import Options

app = typer.Typer(no_args_is_help=True)
app.command("record")(trace_record.record)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Trace files, of any supported format.")]
DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A data set that `atrex trace import` wrote.")]
PhaseFilter = Annotated[str | None, typer.Option("--phase", help="Only prefill, decode, mixed or none.")]
FrameworkOption = Annotated[
    list[str] | None,
    typer.Option("--framework", metavar="NAME==VERSION", help="What ran, where kernel names depend on it. Repeatable."),
]


def require_tables(files: Sequence[Path] = (), jobs: int | None = None) -> None:
    """Raise UserError, with what to install, where the packages for traces are missing.

    Decoding of a single large file begins meanwhile.
    """
    try:
        import msgspec  # noqa: F401

        if len(files) == 1:
            from atrex.traces.readers.kineto_stream import start_early

            start_early(files[0], jobs or _cores())
        import polars  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        raise UserError(f"reading traces needs {error.name}: pip install 'atrex[traces]'") from None


def _options(app_name: str | None, rank: int | None, frameworks: list[str] | None, phase: str | None) -> Options:
    from atrex.traces.families.rules import load_rules
    from atrex.traces.families.versions import parse_framework
    from atrex.traces.phases import PHASES
    from atrex.traces.pipeline import Options

    versions = {}
    for item in frameworks or []:
        try:
            name, version = parse_framework(item)
        except ValueError as error:
            raise UserError(f"--framework {error}") from None
        versions[name] = version
        if name not in (packages := sorted({rule.package for rule in load_rules().rules})):
            raise UserError(f"--framework {item}: no rules for {name}: expected one of {', '.join(packages)}")
    if phase is not None and phase not in PHASES:
        raise UserError(f"--phase {phase}: expected one of {', '.join(PHASES)}")
    return Options(app=app_name, rank=rank, versions=versions, phase=phase)


@app.command()
def info(files: FilesArgument, frameworks: FrameworkOption = None, as_json: JsonOption = False) -> None:
    """What a trace is, what it lacks and what that costs."""
    require_tables(files)
    from atrex.report.tables import make_console
    from atrex.traces import importer, summary
    from atrex.traces.report import info_lines

    options, captures, found = _options(None, None, frameworks, None), [], {}
    for path in sorted(files, key=lambda p: "capture" not in p.name.lower()):  # captures explain the others
        with _progress(path.name) as step:
            analysis = importer.analyse_file(path, options, captures, path.name, _cores(), step)
        captures += analysis.captured
        about = summary.summarize(analysis, path.name, None, analysis.trace.meta.rank)
        found[path] = about | {"lacks": summary.lacks(about)}
    if as_json:
        print(json.dumps([found[path] for path in files], indent=2))
        return
    console = make_console()
    for path in files:
        for line in info_lines(found[path]):
            console.print(line, markup=False, soft_wrap=True)


@app.command("import")
def import_(
    files: FilesArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The data set; made if it is not there.")],
    app_name: Annotated[str | None, typer.Option("--app", metavar="NAME", help="The application these are of.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", help="Rank, where the files do not say.")] = None,
    frameworks: FrameworkOption = None,
    phase: Annotated[str | None, typer.Option("--phase", help="The phase all of it is in, whatever it says.")] = None,
    host: Annotated[
        Path | None,
        typer.Option(
            "--host", metavar="FILE", help="Ranges of another recorder (py-spy's chrometrace), joined by time."
        ),
    ] = None,
    clock_offset: Annotated[
        int | None, typer.Option("--clock-offset", metavar="NS", help="What to add to --host's times; else estimated.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", help="Processes; default: the cores.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Import traces into a Parquet data set. Traces of graph captures explain the replays in the others."""
    require_tables(files, jobs)
    from dataclasses import replace

    from atrex.traces import importer, summary
    from atrex.traces.report import import_line

    options = _options(app_name, rank, frameworks, phase)
    if host is not None:
        if len(files) > 1:
            raise UserError(f"--host {host}: joins one trace: expected one FILE, not {len(files)}")
        options = replace(options, host=host, clock_offset=clock_offset)

    def done(result: importer.Imported) -> None:
        print(import_line(result), file=sys.stderr)

    with _progress(files[0].name if len(files) == 1 else "") as step:
        results = importer.import_files(files, out, options, jobs, done, step if len(files) == 1 else None)
    if as_json:
        print(json.dumps([r.summary for r in results if r.summary is not None], indent=2))
    else:
        for result in results:
            for line in summary.lacks(result.summary) if result.summary else []:
                print(f"{result.trace}: {line}")
    failed = [r for r in results if r.error is not None]
    if failed:
        raise UserError(
            failed[0].error if len(failed) == 1 else f"{len(failed)} of {len(results)} files were not imported"
        )


@app.command()
def top(
    directory: DirArgument,
    by: Annotated[str, typer.Option("--by", help="family, operator, kernel, op, module or phase.")] = "family",
    phase: PhaseFilter = None,
    application: Annotated[str | None, typer.Option("--app", help="Only traces of this application.")] = None,
    mixed: Annotated[
        str, typer.Option("--mixed", help="Steps that mix phases: keep them apart, or split them by tokens.")
    ] = "keep",
    inclusive: Annotated[bool, typer.Option("--inclusive", help="Sum durations; overlaps count twice.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="Rows to show; 0 for all.")] = 30,
    as_json: JsonOption = False,
) -> None:
    """Where the device time goes."""
    require_tables()
    from atrex.report.tables import make_console
    from atrex.traces.dataset import open_dataset
    from atrex.traces.report import print_top, top_document

    document = top_document(
        open_dataset(directory), by=by, phase=phase, app=application, mixed=mixed, inclusive=inclusive
    )
    if as_json:
        print(json.dumps(document, indent=2))
        return
    print_top(document, limit, make_console())


@app.command()
def show(
    directory: DirArgument,
    kernel: Annotated[str, typer.Option("--kernel", metavar="PATTERN", help="Regular expression for kernel names.")],
    limit: Annotated[int, typer.Option("--limit", help="Rows to show; 0 for all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Which operation, module, phase and shapes a kernel served, and which rule says so."""
    require_tables()
    from atrex.report.tables import make_console
    from atrex.traces.dataset import open_dataset
    from atrex.traces.report import print_show, show_document

    document = show_document(open_dataset(directory), kernel)
    if as_json:
        print(json.dumps(document, indent=2))
        return
    print_show(document, limit, make_console())


@app.command()
def unmapped(
    directory: DirArgument,
    limit: Annotated[int, typer.Option("--limit", help="Rows to show; 0 for all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """What no rule covers, by device time, with what would help to write one."""
    require_tables()
    from atrex.report.tables import make_console
    from atrex.traces.dataset import open_dataset
    from atrex.traces.report import print_unmapped, unmapped_document

    document = unmapped_document(open_dataset(directory))
    if as_json:
        print(json.dumps(document, indent=2))
        return
    print_unmapped(document, limit, make_console())


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _progress(label: str) -> Any:
    """A context manager that yields a callback (bytes done, bytes in all), drawn where stderr is a terminal."""
    from contextlib import contextmanager, nullcontext

    if not label or not sys.stderr.isatty():
        return nullcontext()
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def shown():
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        from atrex.report.tables import make_console

        with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
            task = bar.add_task(label)
            yield lambda finished, total: bar.update(task, completed=finished, total=total)

    return shown()
