"""What better kernels could give back: traced device time against the ceiling, and against the best kernel of a run.

Per call: what it took, less its shape's roofline on the chip that it ran on, is recoverable in principle. No kernel is
shorter than the shortest of its trace, so the attainable part counts from there. Against a run, a call is compared with
the fastest correct kernel that was judged on that chip at its very shape, else at a shape of its bucket, there by the
fraction of the roofline that the kernel reaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.problems.load import load_suite, suite_hash
from atrex.problems.model import Shape, Suite
from atrex.roofline.bound import roofline
from atrex.scoring.records import UnitRecord
from atrex.scoring.units import unit_score
from atrex.traces.dataset import Dataset
from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.spec import Application, Files, Fleet
from atrex.traces.mining.mine import Mined, Unmined, shape_text

UNNAMED = "unnamed"


@dataclass
class Headroom:
    """One operator, each figure a share of the fleet's device time (card-hours where a fleet says them).

    `traced`: its calls. `known`: those of them whose shape and chip are known. `ceiling`: what would be left of `known`
    at the roofline, `attainable` at the larger of roofline and shortest kernel. `compared`: calls for which the run has
    a kernel, `best`: what would be left of `compared` with it where it is faster. `under`: calls under their roofline.
    """

    operator: str
    traced: float = 0.0
    known: float = 0.0
    ceiling: float = 0.0
    attainable: float = 0.0
    compared: float = 0.0
    best: float = 0.0
    under: float = 0.0
    kernels: set[str] = field(default_factory=set)

    @property
    def recoverable(self) -> float:
        return self.known - self.ceiling

    @property
    def recoverable_attainable(self) -> float:
        return self.known - self.attainable

    @property
    def recoverable_by_run(self) -> float | None:
        return self.compared - self.best if self.compared else None


@dataclass(frozen=True)
class Judged:
    """The fastest correct kernel of a run at one shape: microseconds, and the fraction of the roofline."""

    candidate: str
    us: float
    s: float


class Run:
    """The kernels of a run by chip, operator and shape."""

    def __init__(self, run: Mapping[str, Any], records: Iterable[UnitRecord], suite: Suite) -> None:
        self.chips = set()
        self._exact: dict[tuple[str, str, str], Judged] = {}
        for record in records:
            score = unit_score(record)
            if score is None or record.held_out or record.performance is None:
                continue
            problem = suite.problems.get(record.operator)
            shape = problem.shapes.get(record.shape) if problem is not None else None
            if shape is None:
                continue
            self.chips.add(record.chip)
            key = (record.chip, record.operator, shape_text(shape.init_kwargs, shape.input_kwargs))
            found = Judged(record.candidate, record.performance.median_us, score)
            if key not in self._exact or found.us < self._exact[key].us:
                self._exact[key] = found

    def at(self, each: Mined, roofline_us: float, near: Sequence[Mined]) -> tuple[float, str] | None:
        """(microseconds, candidate) for a call, None where the run has nothing to compare. `near`: its bucket."""
        if each.chip is None:
            return None
        exact = self._exact.get((each.chip, each.operator, each.shape))
        if exact is not None:
            return exact.us, exact.candidate
        others = [
            found for other in near
            if (found := self._exact.get((each.chip, each.operator, other.shape)))
        ]  # fmt: skip
        if not others:
            return None
        best = max(others, key=lambda j: j.s)
        return roofline_us / best.s, best.candidate


def load_judged(path: Path, suite: Path | None = None) -> Run:
    """The kernels of a run directory. `suite`: where the suite that it judged is now, if not where it was.

    Raises UserError where that suite is not there any more, or is another by now.
    """
    from atrex.scoring.runs import load_run

    loaded = load_run(path)
    named = loaded.run.get("suite")
    folder = suite or (None if named in (None, "shipped") else Path(named))
    if folder is not None:
        if not folder.is_dir():
            raise UserError(f"{path}/run.json: suite {folder}: no such folder; --suite says where it is now")
        if loaded.run.get("suite_hash") not in (None, suite_hash(folder)):
            raise UserError(f"{folder}: is not what {path} judged: its content has changed since")
    return Run(loaded.run, loaded.records, load_suite(folder))


def fleet_of(data: Dataset) -> tuple[Fleet, Gathered]:
    """A data set as a fleet: the applications that its traces name, weighted by their device time alone."""
    of = {trace: (data.summaries[trace]["app"] or UNNAMED, Files(files="-")) for trace in data.serving()}
    if not of:
        raise UserError(f"{data.path}: only traces of graph captures in it: no serving time to count")
    ns: dict[str, float] = {}
    for trace, (app, _) in of.items():
        ns[app] = ns.get(app, 0.0) + data.summaries[trace]["device_ns"]["exclusive"]
    applications = {app: Application(card_hours=max(total, 1.0), traces=["-"]) for app, total in ns.items()}
    return Fleet(path=data.path.resolve(), applications=applications), Gathered(data, of)


def headroom(
    fleet: Fleet, gathered: Gathered, mined: Sequence[Mined], unmined: Sequence[Unmined], run: Run | None = None
) -> list[Headroom]:
    """Every operator, most recoverable time first. Shares are of all device time, by the applications' card-hours."""
    suite = load_suite()
    factors = gathered.factors(fleet.card_hours())
    floors = _floors(gathered)
    found: dict[str, Headroom] = {}
    buckets: dict[tuple[str, str], list[Mined]] = {}
    for each in mined:
        buckets.setdefault((each.operator, each.bucket), []).append(each)
    for each in mined:
        row = found.setdefault(each.operator, Headroom(each.operator))
        factor = factors[each.application]
        row.traced += each.total_ns * factor
        if each.chip is None:
            continue
        try:
            work = suite.problem(each.operator).work(Shape("mined", each.init_kwargs, each.input_kwargs))
        except UserError:
            continue
        bound = roofline(work, load_chip(each.chip)).us * 1e3
        least = max(bound, floors[each.trace])
        row.known += each.total_ns * factor
        row.ceiling += math.fsum(min(ns, bound) for ns in each.ns) * factor
        row.attainable += math.fsum(min(ns, least) for ns in each.ns) * factor
        row.under += math.fsum(ns for ns in each.ns if ns < bound) * factor
        judged = run.at(each, bound / 1e3, buckets[each.operator, each.bucket]) if run is not None else None
        if judged is not None:
            row.compared += each.total_ns * factor
            row.best += math.fsum(min(ns, judged[0] * 1e3) for ns in each.ns) * factor
            row.kernels.add(judged[1])
    for each in unmined:
        row = found.setdefault(each.operator, Headroom(each.operator))
        row.traced += each.ns * factors[each.application]
    return sorted(found.values(), key=lambda h: (-h.recoverable, h.operator))


def _floors(gathered: Gathered) -> dict[str, float]:
    """The shortest kernel of each trace in nanoseconds."""
    kernels = gathered.data.table("kernels", gathered.serving())
    shortest = (
        kernels.filter((pl.col("kind") == "kernel") & (pl.col("dur_ns") > 0))
        .group_by("trace").agg(pl.col("dur_ns").min()).collect()
    )  # fmt: skip
    found = dict(shortest.iter_rows())
    return {trace: float(found.get(trace, 0)) for trace in gathered.serving()}


def document(rows: Sequence[Headroom], fleet: Fleet | None, run: Run | None) -> dict[str, Any]:
    """`rows` as one JSON object; with a fleet, card-hours beside the shares."""
    hours = math.fsum(fleet.card_hours().values()) if fleet is not None else None
    listed = []
    for row in rows:
        entry: dict[str, Any] = {
            "operator": row.operator,
            "share": row.traced,
            "shape_known": row.known / row.traced if row.traced else 0.0,
            "recoverable": row.recoverable,
            "recoverable_attainable": row.recoverable_attainable,
            "under_roofline": row.under,
        }
        if run is not None:
            entry |= {"recoverable_by_run": row.recoverable_by_run, "kernels": sorted(row.kernels),
                      "compared": row.compared / row.traced if row.traced else 0.0}  # fmt: skip
        if hours is not None:
            entry["card_hours"] = {
                key: None if entry[key] is None else entry[key] * hours
                for key in ("share", "recoverable", "recoverable_attainable", "recoverable_by_run") if key in entry
            }  # fmt: skip
        listed.append(entry)
    return {"card_hours": hours, "run_chips": sorted(run.chips) if run is not None else None, "operators": listed}
