"""What a suite built from a fleet would hold, before anything is written: shapes, weights, what is left out and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from atrex.errors import UserError
from atrex.problems.load import load_suite
from atrex.problems.model import Suite
from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.select import COVERAGE, KeptOut, Selection, select
from atrex.traces.fleet.served import moved_notes, served
from atrex.traces.fleet.spec import Fleet
from atrex.traces.fleet.weights import MIN_SHARE, FleetWeights, device_time, importance
from atrex.traces.mining.mine import Mined, mine


@dataclass
class Plan:
    """`selections`: operators with shapes, heaviest weight first. `missing`: operator -> device time (scaled by
    card-hours) whose shapes could not be told, with the reasons by time. `weights`: normalized over `selections`."""

    fleet: Fleet
    base: Suite
    selections: list[Selection]
    kept_out: list[KeptOut]
    missing: dict[str, dict[str, float]]
    weights: FleetWeights
    coverage: float
    profiles: dict[str, int] = field(default_factory=dict)

    def covered(self, operator: str) -> float:
        """Share of an operator's device time that its kept buckets hold, calls without a shape included below it."""
        selection = next(s for s in self.selections if s.operator == operator)
        whole = selection.scaled + math.fsum(self.missing.get(operator, {}).values())
        return selection.kept_scaled / whole if whole else 0.0

    @property
    def covered_in_all(self) -> float:
        """The same over all operators of the suite that ran."""
        whole = math.fsum(s.scaled for s in self.selections) + math.fsum(
            ns for reasons in self.missing.values() for ns in reasons.values()
        )
        return math.fsum(s.kept_scaled for s in self.selections) / whole if whole else 0.0


def make_plan(
    fleet: Fleet, gathered: Gathered, coverage: float = COVERAGE, min_share: float = MIN_SHARE, mixed: str = "split",
    inclusive: bool = False, jobs: int | None = None, done: Callable[[int, int], None] = lambda n, all_: None,
) -> Plan:  # fmt: skip
    """Mine, select and weight. Raises UserError where nothing of the suite's operators has a shape."""
    base = load_suite()
    for i, entry in enumerate(fleet.explained):
        if entry.operator not in base.problems:
            raise UserError(f"{fleet.path}: explained.{i}.operator: no operator {entry.operator!r} in the suite")
    mined, unmined = mine(fleet, gathered, jobs, done)
    applications = {trace: gathered.of[trace][0] for trace in gathered.serving()}
    time = device_time(gathered.data, applications, mixed, inclusive)
    kind = "inclusive" if inclusive else "exclusive"
    moved = served(time, mined, unmined, mixed)
    hours = fleet.card_hours()
    factors = gathered.factors(hours)
    by_operator: dict[str, list[Mined]] = {}
    for each in mined:
        by_operator.setdefault(each.operator, []).append(each)
    chosen = [
        select(base.problem(operator), calls, factors, coverage, fleet.explained)
        for operator, calls in by_operator.items()
        if operator in base.problems
    ]
    kept = [s for s in chosen if s.kept]
    missing: dict[str, dict[str, float]] = {}
    for each in unmined:
        reasons = missing.setdefault(each.operator, {})
        reasons[each.reason] = reasons.get(each.reason, 0.0) + each.ns * factors[each.application]
    for selection in chosen:
        if not selection.kept:
            reasons = missing.setdefault(selection.operator, {})
            why = "every shape of it is under its roofline" if selection.kept_out else "no shape was selected"
            reasons[why] = reasons.get(why, 0.0) + selection.scaled
    if not kept:
        first = next((f"{o}: {next(iter(r))}" for o, r in missing.items()), "no call of the suite's operators")
        raise UserError(f"{fleet.path}: no shape could be mined from its traces ({first})")
    weights = importance(moved, hours, min_share, {s.operator for s in kept}, kind, mixed)
    weights.notes.extend(moved_notes(time, moved, hours) + _chipless(fleet, gathered))
    order = list(weights.weights)
    kept = [s for s in kept if s.operator in order]
    kept.sort(key=lambda s: order.index(s.operator))
    profiles = {s.operator: len({m.trace for k in s.kept for m in k.bucket.mined}) for s in kept}
    kept_out = [out for selection in chosen for out in selection.kept_out]
    return Plan(fleet, base, kept, kept_out, missing, weights, coverage, profiles)


def _chipless(fleet: Fleet, gathered: Gathered) -> list[str]:
    """Applications with traces of a device that no chip file describes: their calls have no time that counts."""
    found: dict[str, int] = {}
    for trace in gathered.serving():
        if gathered.chip_of(trace) is None:
            app = gathered.of[trace][0]
            found[app] = found.get(app, 0) + 1
    return [
        f"{app}: the device of {count} traces is in no chip file (`chip` in fleet.yaml names one): no production times "
        "and no check against the roofline"
        for app, count in found.items()
    ]
