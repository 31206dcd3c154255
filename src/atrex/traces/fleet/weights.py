"""Importance weights from traces: equations 2 and 3 of the Atrex-Bench paper, section 3.4.

D is summed device time by application a, phase and family of kernels; the paper's operator i is a family here, those
beyond the suite included, so that shares add up. The share of a family in a phase has all device time of the phase
below it, copies and unmapped kernels included. A family's score is the mean of its shares over the phases it runs in,
weighted by the applications' shares of card-hours, and a weight is a score over the sum of the retained operators'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import polars as pl

from atrex.errors import UserError
from atrex.traces.dataset import Dataset
from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.served import moved_notes, served
from atrex.traces.fleet.spec import Fleet
from atrex.traces.mining.mine import mine
from atrex.traces.phases import DECODE, MIXED, NONE, PHASES, PREFILL
from atrex.traces.report import MIXED_POLICIES, weighted

MIN_SHARE = 0.001  # of a phase's device time, from which a family counts as running in it


@dataclass(frozen=True)
class ApplicationTime:
    """One application: its share of card-hours, and its device nanoseconds by phase (`none`: without a phase)."""

    card_hours: float
    share: float
    ns: dict[str, float]

    @property
    def phases(self) -> list[str]:
        return [p for p in PHASES if p != NONE and self.ns.get(p)]


@dataclass(frozen=True)
class FamilyWeight:
    """One family of kernels. `operator`: of the suite, None beyond it.

    `phases`: those it runs in. `shares`: application -> phase -> its share of the phase's device time there.
    `score`: card-hour weighted mean, before normalization. `weight`: None where it is not retained.
    """

    family: str
    operator: str | None
    phases: tuple[str, ...]
    shares: dict[str, dict[str, float]]
    score: float
    weight: float | None = None


@dataclass(frozen=True)
class FleetWeights:
    """All families, heaviest first. `time`: exclusive or inclusive; `mixed`: how mixed steps were counted."""

    applications: dict[str, ApplicationTime]
    families: list[FamilyWeight]
    time: str
    mixed: str
    min_share: float
    notes: list[str] = field(default_factory=list)

    @property
    def weights(self) -> dict[str, float]:
        """operator -> weight, those retained, heaviest first; they sum to 1."""
        return {f.operator: f.weight for f in self.families if f.operator is not None and f.weight is not None}

    def score(self, family: str) -> float:
        return next((f.score for f in self.families if f.family == family), 0.0)


def fleet_weights(
    fleet: Fleet, gathered: Gathered, min_share: float = MIN_SHARE, mixed: str = "split", inclusive: bool = False,
    retained: Collection[str] | None = None, jobs: int | None = None,
    done: Callable[[int, int], None] = lambda finished, of: None,
) -> FleetWeights:  # fmt: skip
    """Weights of a fleet whose traces are gathered; see `device_time`, `served` and `importance`."""
    applications = {trace: gathered.of[trace][0] for trace in gathered.serving()}
    time = device_time(gathered.data, applications, mixed, inclusive)
    moved = served(time, *mine(fleet, gathered, jobs, done), mixed)
    kind = "inclusive" if inclusive else "exclusive"
    found = importance(moved, fleet.card_hours(), min_share, retained, kind, mixed)
    found.notes.extend(moved_notes(time, moved, fleet.card_hours()))
    return found


def device_time(
    data: Dataset, applications: Mapping[str, str], mixed: str = "split", inclusive: bool = False
) -> pl.DataFrame:
    """D of equation 2: app, phase, family, operator, ns. `applications`: trace -> application, of serving traces.

    With `mixed="split"` a mixed step counts to prefill and decode by its tokens; one that does not say its tokens, and
    with "keep" every one, is of a phase of its own. Raises UserError for an unknown policy.
    """
    if mixed not in MIXED_POLICIES:
        raise UserError(f"--mixed {mixed}: expected one of {', '.join(MIXED_POLICIES)}")
    names = pl.LazyFrame({"trace": list(applications), "application": list(applications.values())})
    kernels = data.table("kernels", list(applications)).join(names, on="trace")
    parts = [
        weighted(kernels, phase, mixed, inclusive)
        .group_by(pl.col("application").alias("app"), "family", "operator")
        .agg(pl.col("ns").sum())
        .with_columns(phase=pl.lit(phase))
        .select("app", "phase", "family", "operator", "ns")
        for phase in PHASES
    ]
    return pl.concat(pl.collect_all(parts)).sort("app", "phase", "family")


def importance(
    time: pl.DataFrame, card_hours: Mapping[str, float], min_share: float = MIN_SHARE,
    retained: Collection[str] | None = None, time_kind: str = "exclusive", mixed: str = "split",
) -> FleetWeights:  # fmt: skip
    """Equation 3 over `device_time`. `retained`: the operators that are normalized over; default: all that ran.

    An operator runs in a phase where it takes at least `min_share` of the phase's device time, over the fleet by
    card-hours; one that reaches it nowhere runs in the phase where it comes nearest. In an application without device
    time in one of these phases the mean is over the others. Raises UserError for an application without any device
    time in a phase, and where no retained operator has any.
    """
    total = math.fsum(card_hours.values())
    denominators = {(a, p): ns for a, p, ns in time.group_by("app", "phase").agg(pl.col("ns").sum()).iter_rows()}
    applications = {
        name: ApplicationTime(hours, hours / total, {p: ns for p in PHASES if (ns := denominators.get((name, p)))})
        for name, hours in card_hours.items()
    }
    for name, app in applications.items():
        if not app.phases:
            raise UserError(f"application {name}: no device time in any phase: give its traces a `phase` in fleet.yaml")
    ns = {(a, p, f): n for a, p, f, _, n in time.iter_rows()}
    operators = dict(time.select("family", "operator").unique().iter_rows())
    families = [_family(f, operator, applications, ns, min_share) for f, operator in operators.items()]
    kept = {f.family: f.score for f in families
            if f.operator is not None and f.score > 0 and (retained is None or f.operator in retained)}  # fmt: skip
    whole = math.fsum(kept.values())
    if not whole > 0:
        raise UserError("no device time of the suite's operators in these traces: there is nothing to weight")
    weighed = [FamilyWeight(**{**f.__dict__, "weight": f.score / whole}) if f.family in kept else f for f in families]
    weighed.sort(key=lambda f: (-f.score, f.family))
    return FleetWeights(applications, weighed, time_kind, mixed, min_share, _notes(applications, mixed))


def _family(
    family: str, operator: str | None, applications: Mapping[str, ApplicationTime],
    ns: Mapping[tuple[str, str, str], float], min_share: float,
) -> FamilyWeight:  # fmt: skip
    shares = {
        name: {p: ns.get((name, p, family), 0.0) / app.ns[p] for p in app.phases} for name, app in applications.items()
    }
    fleet = {}
    for phase in (PREFILL, DECODE, MIXED):
        seen = [name for name, app in applications.items() if phase in app.phases]
        hours = math.fsum(applications[name].share for name in seen)
        if seen:
            fleet[phase] = math.fsum(applications[name].share * shares[name][phase] for name in seen) / hours
    running = tuple(p for p, share in fleet.items() if share >= min_share and share > 0)
    if not running and (best := max(fleet, key=lambda p: fleet[p])) and fleet[best] > 0:
        running = (best,)
    score = math.fsum(
        app.share * math.fsum(shares[name][p] for p in observed) / len(observed)
        for name, app in applications.items()
        if (observed := [p for p in running if p in app.phases])
    )
    return FamilyWeight(family, operator, running, shares, score)


def _notes(applications: Mapping[str, ApplicationTime], mixed: str) -> list[str]:
    found = []
    for name, app in applications.items():
        whole = math.fsum(app.ns.values())
        if (lost := app.ns.get(NONE, 0.0) / whole) > 0.005:
            found.append(f"{name}: {lost:.1%} of its device time has no phase and counts in none")
        if MIXED in app.phases:
            why = "kept apart" if mixed == "keep" else "which do not say their tokens"
            found.append(f"{name}: {app.ns[MIXED] / whole:.1%} of its device time is in mixed steps, {why}: a phase of "
                         "its own in the mean")  # fmt: skip
    return found
