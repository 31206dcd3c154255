"""From the candidates of one iteration to the one that is contested: gates, duplicates, heats.

The machine that measures and the supervisor narrow the field by the same rules; what the judge and the heats found is
handed in, so that neither is measured twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from atrex.optimize.classify import host_side
from atrex.optimize.lab import UnitFailed
from atrex.optimize.patience import noisy
from atrex.optimize.promotion import HEAT_ROUNDS, Round
from atrex.scoring.comparison import Comparison, Pair, compare_times
from atrex.scoring.operators import DOMINANT_SHARE
from atrex.scoring.records import Status, UnitRecord

Ended = tuple[str, str | None]
"""The outcome of a candidate that is not contested, and why."""


@dataclass(frozen=True)
class Earlier:
    """What the campaign has measured: hashes of artifacts and of sources, each with the number of its attempt."""

    artifacts: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    deduplicate: bool = True


@dataclass(frozen=True)
class Heat:
    """A few rounds of a candidate against the incumbent, shape by shape; `failed` says why there are none.

    `noise` says that it was no fault of the candidate's: a unit of either could not be timed.
    """

    times: dict[str, list[Pair]]
    failed: str | None = None
    noise: bool = False

    @property
    def comparison(self) -> Comparison:
        return compare_times(self.times)


@dataclass(frozen=True)
class Field:
    """Who is contested, None when nobody is fit for it; how the others ended; heats where there were any."""

    chosen: int | None
    ended: dict[int, Ended]
    heats: dict[int, Heat]


def repeats(sources: Mapping[int, str], earlier: Earlier) -> dict[int, Ended]:
    """Attempts that hand in a source of before, or of another attempt. `sources` are SHA-256 by number."""
    found: dict[int, Ended] = {}
    if not earlier.deduplicate:
        return found
    first: dict[str, int] = dict(earlier.sources)
    for number, digest in sources.items():
        if digest in first:
            found[number] = "duplicate", f"the source of attempt {first[digest]}"
        first.setdefault(digest, number)
    return found


def narrow(
    sources: Mapping[int, str],
    earlier: Earlier,
    judged: Callable[[int], Sequence[UnitRecord]],
    heat: Callable[[int], Heat],
) -> Field:
    """The field of an iteration. `sources` are texts by number, `judged` and `heat` what was measured of an attempt.

    Both are asked for what is needed alone: no records of a repeated source, no heats where one candidate is left.
    """
    ended = repeats({number: digest(text) for number, text in sources.items()}, earlier)
    artifacts, fit = dict(earlier.artifacts), []
    for number, text in sources.items():
        if number in ended:
            continue
        records = judged(number)
        if why := short_of_contest(records, text, artifacts if earlier.deduplicate else {}):
            ended[number] = why
            continue
        fit.append(number)
        if (compiled := artifact(records, text)) is not None:
            artifacts.setdefault(compiled, number)
    heats = {number: heat(number) for number in fit} if len(fit) > 1 else {}
    for number, seen in heats.items():
        if seen.failed:
            ended[number] = "undecided" if seen.noise else "failed", f"in the heats, {seen.failed}"
    left = [number for number in fit if number not in ended]
    gains = {number: heats[number].comparison.overall.ratio for number in left if heats}
    chosen = max(left, key=lambda number: gains.get(number, 0.0), default=None)
    for number in left:
        if number != chosen:
            ended[number] = "not_selected", f"attempt {chosen} looked better, x{gains[chosen]:.3f}"
    return Field(chosen, ended, heats)


def run_heat(contest: AbstractContextManager[Round]) -> Heat:
    """Measure a heat. Raises UnitFailed when the incumbent does not pass, unless that is for noise."""
    times: dict[str, list[Pair]] = {}
    try:
        with contest as measure:
            for _ in range(HEAT_ROUNDS):
                for shape, pair in measure(None).items():
                    times.setdefault(shape, []).append(pair)
    except UnitFailed as failed:
        noise = noisy(failed.record)
        if not (failed.of_candidate or noise):
            raise
        return Heat({}, f"{failed.record.shape}: {said(failed.record)}", noise)
    return Heat(times)


def short_of_contest(records: Sequence[UnitRecord], source: str, earlier: Mapping[str, int]) -> Ended | None:
    """Outcome and reason of a candidate that ends without a contest; None for one that is fit for it.

    `source` is its text, `earlier` are artifacts that were measured, each with its attempt.
    """
    if wrong := _failure(records):
        return wrong
    if weak := _fallback(records):
        return "fallback", weak
    compiled = artifact(records, source)
    if compiled in earlier:
        return "duplicate", f"compiles to what attempt {earlier[compiled]} measured, and calls it alike"
    return None


def artifact(records: Sequence[UnitRecord], source: str) -> str | None:
    """One hash of everything that a candidate compiled to, over all shapes, and of the host's side of its source.

    None when nothing is known of some shape. The host's side chooses grids and arguments: one artifact launched
    otherwise is another kernel.
    """
    parts: list[Any] = [host_side(source)]
    for record in sorted(records, key=lambda r: r.shape):
        if record.compile is None or not record.compile.artifacts:
            return None
        parts.append((record.shape, sorted(each.sha256 for each in record.compile.artifacts)))
    return digest(json.dumps(parts)) if len(parts) > 1 else None


def digest(text: str) -> str:
    """SHA-256 of a source."""
    return hashlib.sha256(text.encode()).hexdigest()


def said(record: UnitRecord) -> str:
    """A verdict in words."""
    verdict = record.verdict
    return f"{verdict.category or verdict.status.value}: {verdict.reason}"


def _failure(records: Sequence[UnitRecord]) -> Ended | None:
    """What did not pass, its own fault first; a unit that could not be timed for noise says nothing of the kernel."""
    if not records:
        return "failed", "no shape was judged"
    wrong = [record for record in records if record.verdict.status is not Status.PASSED]
    for record in sorted(wrong, key=noisy):
        return "undecided" if noisy(record) else "failed", f"{record.shape}: {said(record)}"
    return None


def _fallback(records: Sequence[UnitRecord]) -> str | None:
    """Why the kernel is no kernel in the target DSL: on some shape, half of the time or more goes elsewhere."""
    for record in records:
        if record.held_out or record.adoption is None:
            continue
        if record.adoption.share <= DOMINANT_SHARE or record.verdict.shortcut:
            return f"{record.shape}: {record.adoption.share:.0%} of its time in {record.dsl}, over 50 % are asked for"
    return None
