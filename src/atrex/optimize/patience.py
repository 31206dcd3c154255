"""When a contest gives up: rounds that vary too much, too many of them, too much time, cores that others have.

Giving up never promotes, so it takes nothing from the error rate that the promotion rule holds: what is promoted with
bounds would be promoted without them. The decision's share of the error is spent all the same once a round is in. What
was given up is undecided: it says nothing about the candidate.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrex.optimize.model import Settings
from atrex.scoring.comparison import Pair
from atrex.scoring.records import Status, UnitRecord

SPREAD = 10.0  # times between rounds, the slowest and the fastest of them left out, from which nothing is decided
_JUDGED_FROM = 4  # rounds
_BUSY = 6.0  # running processes of others for each core, from which a round is not begun
_CALM_WITHIN = 30.0  # seconds that are waited for the cores
_LOOKS, _APART = 5, 0.1


class GaveUp(Exception):
    """A contest cannot be decided here and now; the message is the reason in one line."""


@dataclass(frozen=True)
class Bounds:
    """What a contest may take: rounds, seconds (None: any), and `spread` as the ratio of its rounds' times."""

    rounds: int | None = None
    seconds: float | None = None
    spread: float = SPREAD


def bounds_of(settings: Settings, until: float | None = None) -> Bounds:
    """What a contest of a campaign may take, the time left to `until` (time.monotonic()) at most."""
    left = math.inf if until is None else max(0.0, until - time.monotonic())
    return Bounds(settings.contest_rounds, min(settings.contest_s, left))


class Patience:
    """Of one contest, from its beginning. `rounds` are those that were measured."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic):
        self._bounds, self._clock, self._began = bounds, clock, clock()
        self.rounds = 0

    def before(self, left: int, planned: int) -> None:
        """Before a round, `left` of which a decision at `planned` rounds takes. Raises GaveUp where it cannot come."""
        bounds, took = self._bounds, self._clock() - self._began
        if bounds.rounds is not None and planned > bounds.rounds:
            raise GaveUp(f"{_rounds(self.rounds)}, and the next look is at {planned}: the limit is {bounds.rounds}")
        if bounds.seconds is None:
            return
        pace = took / self.rounds if self.rounds > 1 else 0.0
        if took >= bounds.seconds or took + pace * left > bounds.seconds:
            more = f"about {pace * left:.0f} s more are needed" if pace else "no time is left"
            raise GaveUp(f"{_rounds(self.rounds)} in {took:.0f} s, and {more}: the limit is {bounds.seconds:.0f} s")

    def after(self, times: Mapping[str, Sequence[Pair]]) -> None:
        """After a round. Raises GaveUp where the rounds vary too much for any reading of them."""
        self.rounds += 1
        found = spread_of(times)
        if found >= self._bounds.spread:
            raise GaveUp(
                f"times vary {found:.0f}-fold from round to round, the limit is {self._bounds.spread:g}-fold "
                f"(load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
            )


def spread_of(times: Mapping[str, Sequence[Pair]]) -> float:
    """The second longest round over the second shortest, by the mean log time of both kernels; 1 for a few rounds.

    One round that was disturbed is what the rank test withstands, so one on either side does not count.
    """
    rounds = sorted(
        statistics.fmean(math.log(a * b) / 2 for a, b in pairs) for pairs in zip(*times.values(), strict=True)
    )
    return math.exp(rounds[-2] - rounds[1]) if len(rounds) >= _JUDGED_FROM else 1.0


def wait_calm(seconds: float = _CALM_WITHIN, running: Callable[[], float] | None = None) -> None:
    """Return when the cores are not taken by others. Raises GaveUp where that takes longer than `seconds`."""
    running, until = running or running_beside, time.monotonic() + seconds
    limit = _BUSY * (os.cpu_count() or 1)
    while (found := running()) >= limit:
        if time.monotonic() > until:
            raise GaveUp(f"other work has the {os.cpu_count()} cores: {found:.0f} processes run, for {seconds:.0f} s")


def running_beside() -> float:
    """How many other processes run or wait for a core (the median of a few looks), 0 where Linux does not say."""
    seen = []
    for _ in range(_LOOKS):
        try:
            seen.append(int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1)
        except (OSError, ValueError, IndexError):
            return 0.0
        if len(seen) == 1 and seen[0] <= 1:
            break
        time.sleep(_APART)
    return float(statistics.median(seen))


def noisy(record: UnitRecord) -> bool:
    """Whether a unit ended as it did for what else ran on the machine."""
    return record.verdict.status is Status.ERROR and record.verdict.category == "unstable"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
