"""What an evaluation shows while it runs: a table that is redrawn in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from rich.table import Table
from rich.text import Text

from atrex.report import figures
from atrex.scoring.records import Status, UnitRecord

if TYPE_CHECKING:
    from atrex.evaluate.engine import UnitName

LINE_FOR_EACH = 60
"""Up to this many units each has a line of its own where the output is no terminal."""
LINE_EVERY = 15.0  # seconds, beyond that


@dataclass
class Board:
    """The state of a run: counts, pace, and what each device is at. Times are seconds of `clock`."""

    clock: Callable[[], float] = time.monotonic
    planned: int = 0
    before: int = 0
    """Units that an earlier session of the run has judged: they count as done and say nothing about the pace."""
    counts: Counter[Status] = field(default_factory=Counter)
    devices: dict[str, list[str]] = field(default_factory=dict)
    started: float | None = None

    @property
    def done(self) -> int:
        return self.before + sum(self.counts.values())

    def begin(self, device: str, unit: UnitName | None) -> None:
        """A device begins a unit; with None it has no more."""
        self.started = self.started if self.started is not None else self.clock()
        at = self.devices.setdefault(device, [])
        if unit is not None:
            at.append(f"{unit.operator}/{unit.shape}")

    def end(self, done: int, planned: int, record: UnitRecord) -> None:
        """A record has come; `done` of `planned` are in the run directory now."""
        self.started = self.started if self.started is not None else self.clock()
        self.planned = planned
        self.counts[record.verdict.status] += 1
        self.before = done - sum(self.counts.values())
        at = self.devices.setdefault(record.node or record.device, [])
        name = f"{record.operator}/{record.shape}"
        if name in at:
            at.remove(name)

    @property
    def per_minute(self) -> float | None:
        """Units a minute in this session."""
        ours = sum(self.counts.values())
        passed = self.clock() - self.started if self.started is not None else 0.0
        return 60 * ours / passed if ours and passed > 0 else None

    @property
    def seconds_left(self) -> float | None:
        return 60 * (self.planned - self.done) / self.per_minute if self.per_minute else None

    def line(self) -> str:
        """The run in one line."""
        parts = [f"{self.done} of {self.planned} units", f"{self.counts[Status.PASSED]} passed"]
        if self.counts[Status.FAILED]:
            parts.append(f"{self.counts[Status.FAILED]} failed")
        if self.counts[Status.ERROR]:
            parts.append(f"{self.counts[Status.ERROR]} in error")
        if self.per_minute is not None:
            parts += [f"{self.per_minute:.0f} a minute", f"{_clock(self.seconds_left)} left"]
        return ", ".join(parts)

    def table(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text(self.line(), style="bold"))
        for device, at in self.devices.items():
            grid.add_row(Text(f"{device}: {', '.join(at) if at else 'idle'}"))
        return grid


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return figures.DASH
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Progress:
    """Shows a board: a context manager whose `unit` and `watch` are what `atrex.evaluate.run.run` calls."""

    def __init__(self, stream: TextIO = sys.stderr, board: Board | None = None):
        self.board = board or Board()
        self._stream, self._last = stream, 0.0
        self._live = None

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(get_renderable=self.board.table, console=Console(file=self._stream), transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.__exit__(*exception)

    def watch(self, device: str, unit: UnitName | None) -> None:
        self.board.begin(device, unit)

    def unit(self, done: int, planned: int, record: UnitRecord) -> None:
        self.board.end(done, planned, record)
        failed = record.verdict.status is not Status.PASSED
        line = f"[{done}/{planned}]  {figures.unit_line(record)[:300]}"
        if self._live:
            if failed:
                self._live.console.print(Text(line))
        elif failed or planned <= LINE_FOR_EACH:
            print(line, file=self._stream, flush=True)
        elif self.board.clock() - self._last >= LINE_EVERY or done == planned:
            self._last = self.board.clock()
            print(self.board.line(), file=self._stream, flush=True)
