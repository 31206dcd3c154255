"""Files into a data set: many at a time in processes of their own, a large one with several that decode it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
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


def import_files(
    sources: Sequence[Path], out: Path, options: Options, jobs: int | None = None,
    done: Callable[[Imported], None] = lambda _: None, progress: Progress | None = None,
) -> list[Imported]:  # fmt: skip
    """Import files into the data set `out`, several at a time.

    Traces of graph captures are imported first and explain the replays in the others. `done` is called with each file
    as it is ready, `progress` with bytes done and in all where a single file is read.
    """
    dataset.create(out)
    jobs = jobs or os.cpu_count() or 1
    taken: dict[str, str] = {}
    named: list[tuple[Path, str]] = []
    for source in dict.fromkeys(sources):
        trace = dataset.trace_id(out, source, options.app, taken)
        taken[trace] = str(source.resolve())
        named.append((source, trace))
    first = [n for n in named if "capture" in n[0].name.lower()]
    results: dict[str, Imported] = {}
    captures: list[CapturedGraph] = []

    def stage(files: Sequence[tuple[Path, str]]) -> None:
        for result in _run(files, out, options, captures, jobs, progress):
            results[result.trace] = result
            done(result)

    stage(first)
    captures += [g for _, trace in first for g in results[trace].captured]
    stage([n for n in named if n not in first])
    later = [g for _, trace in named if (_, trace) not in first for g in results[trace].captured]
    again = [n for n in named if results[n[1]].unjoined]
    if later and again:
        captures += later
        stage(again)
    return [results[trace] for _, trace in named]


def _run(
    files: Sequence[tuple[Path, str]], out: Path, options: Options, captures: Sequence[CapturedGraph], jobs: int,
    progress: Progress | None,
) -> Iterable[Imported]:  # fmt: skip
    if len(files) <= 1 or jobs == 1:
        for source, trace in files:
            yield import_file(source, out, trace, options, captures, jobs, progress)
        return
    workers = min(jobs, len(files))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_alone) as pool:
        futures: list[Future[Imported]] = [
            pool.submit(import_file, source, out, trace, options, captures, max(1, jobs // workers))
            for source, trace in sorted(files, key=lambda f: -_size(f[0]))
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
