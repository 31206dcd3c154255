"""Files into a data set: many at a time in processes of their own, a large one with several that decode it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.traces import dataset, pipeline, readers, summary, tables, timejoin
from atrex.traces.graphs import CapturedGraph
from atrex.traces.pipeline import Analysis, Options

Progress = Callable[[int, int], None]


@dataclass
class Imported:
    """What came of one file: its summary, or the one line that says why there is none."""

    source: Path
    trace: str
    summary: dict[str, Any] | None = None
    error: str | None = None
    captured: list[CapturedGraph] = field(default_factory=list)

    @property
    def unjoined(self) -> int:
        """Graph replays that no capture explains."""
        return self.summary["graphs"]["replays"] - self.summary["graphs"]["joined"] if self.summary else 0


def analyse_file(
    source: Path, options: Options, captures: Sequence[CapturedGraph] = (), trace: str = "", jobs: int = 1,
    progress: Progress | None = None,
) -> Analysis:  # fmt: skip
    """Read, link and classify one file. Raises UserError if it cannot be read."""
    raw = readers.reader_of(source).read(source, jobs, progress)
    if options.host is not None:
        raw = timejoin.join(raw, readers.reader_of(options.host).read(options.host, jobs), options.clock_offset)
    return pipeline.analyse(raw, options, captures, trace or source.name)


def import_file(
    source: Path, out: Path, trace: str, options: Options, captures: Sequence[CapturedGraph] = (), jobs: int = 1,
    progress: Progress | None = None,
) -> Imported:  # fmt: skip
    """Import one file as `trace`. A UserError becomes the result's `error`."""
    try:
        analysis = analyse_file(source, options, captures, trace, jobs, progress)
    except UserError as error:
        return Imported(source, trace, error=str(error))
    rank = options.rank if options.rank is not None else analysis.trace.meta.rank
    about = summary.summarize(analysis, trace, options.app, rank)
    about["source"] = str(source.resolve())
    dataset.write(out, trace, tables.builders(analysis, trace, options.app, rank), about)
    return Imported(source, trace, about, captured=analysis.captured)


@dataclass(frozen=True)
class Batch:
    """Files that are imported alike. Captures explain the replays of batches with the same `key`."""

    sources: Sequence[Path]
    options: Options
    key: str = ""


def import_files(
    sources: Sequence[Path], out: Path, options: Options, jobs: int | None = None,
    done: Callable[[Imported], None] = lambda _: None, progress: Progress | None = None,
) -> list[Imported]:  # fmt: skip
    """Import files into the data set `out`, several at a time.

    Traces of graph captures are imported first and explain the replays in the others. `done` is called with each file
    as it is ready, `progress` with bytes done and in all where a single file is read.
    """
    return import_batches([Batch(sources, options)], out, jobs, done, progress)


@dataclass(frozen=True)
class _File:
    source: Path
    trace: str
    options: Options
    key: str


def import_batches(
    batches: Sequence[Batch], out: Path, jobs: int | None = None, done: Callable[[Imported], None] = lambda _: None,
    progress: Progress | None = None,
) -> list[Imported]:  # fmt: skip
    """Import several batches as `import_files` does one, files of all of them at a time; results in order."""
    dataset.create(out)
    jobs = jobs or os.cpu_count() or 1
    taken: dict[str, str] = {}
    named: list[_File] = []
    for batch in batches:
        for source in dict.fromkeys(batch.sources):
            trace = dataset.trace_id(out, source, batch.options.app, taken)
            taken[trace] = str(source.resolve())
            named.append(_File(source, trace, batch.options, batch.key))
    first = [f for f in named if "capture" in f.source.name.lower()]
    results: dict[str, Imported] = {}
    captures: dict[str, list[CapturedGraph]] = {}

    def stage(files: Sequence[_File]) -> None:
        for result in _run(files, out, captures, jobs, progress):
            results[result.trace] = result
            done(result)

    def captured(files: Sequence[_File]) -> dict[str, list[CapturedGraph]]:
        found: dict[str, list[CapturedGraph]] = {}
        for file in files:
            found.setdefault(file.key, []).extend(results[file.trace].captured)
        return {key: graphs for key, graphs in found.items() if graphs}

    stage(first)
    captures |= captured(first)
    stage([f for f in named if f not in first])
    later = captured([f for f in named if f not in first])
    again = [f for f in named if f.key in later and results[f.trace].unjoined]
    if again:
        for key, graphs in later.items():
            captures[key] = [*captures.get(key, []), *graphs]
        stage(again)
    return [results[f.trace] for f in named]


def _run(
    files: Sequence[_File], out: Path, captures: Mapping[str, list[CapturedGraph]], jobs: int,
    progress: Progress | None,
) -> Iterable[Imported]:  # fmt: skip
    def asked(file: _File) -> tuple[Path, Path, str, Options, list[CapturedGraph]]:
        return file.source, out, file.trace, file.options, captures.get(file.key, [])

    if len(files) <= 1 or jobs == 1:
        for file in files:
            yield import_file(*asked(file), jobs, progress)
        return
    workers = min(jobs, len(files))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_alone) as pool:
        futures: list[Future[Imported]] = [
            pool.submit(import_file, *asked(file), max(1, jobs // workers))
            for file in sorted(files, key=lambda f: -_size(f.source))
        ]
        for future in as_completed(futures):
            yield future.result()


def _alone() -> None:
    """Workers share the cores: each of them uses one."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
