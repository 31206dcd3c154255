"""A whole run scored: one result a candidate set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atrex.scoring.aggregate import Summary, judged_shapes, summarize
from atrex.scoring.operators import OperatorScore, operator_scores
from atrex.scoring.records import UnitRecord
from atrex.scoring.runs import group_records, planned_units
from atrex.scoring.units import SCORED_ORIGINS


@dataclass(frozen=True)
class CandidateScore:
    """One candidate set on one device: its records, its figures per operator (heaviest first) and over the suite.

    `judged` are the scored shapes by operator that have a record or were planned.
    """

    records: list[UnitRecord]
    operators: dict[str, OperatorScore]
    summary: Summary
    judged: dict[str, set[str]]


def score_run(
    run: Mapping[str, Any],
    records: Sequence[UnitRecord],
    weights: Mapping[str, float],
    denominators: Mapping[str, int],
) -> dict[str, CandidateScore]:
    """Score every candidate set of a run; `run` is the content of run.json. Raises ValueError as `summarize` does.

    What was planned counts for a set that is the run's only one; with several, for the operators that a set has a
    record of, as run.json plans units and not who was to answer them.
    """
    groups = group_records(run, records)
    planned = planned_units(run)
    scored = {}
    for label, group in groups.items():
        touched = {r.operator for r in group}
        held_out = {(r.operator, r.shape) for r in group if r.held_out or r.origin not in SCORED_ORIGINS}
        mine = [p for p in planned if p not in held_out and (len(groups) == 1 or p[0] in touched)]
        scored[label] = CandidateScore(
            group,
            operator_scores(group, weights, denominators),
            summarize(group, weights, denominators, mine),
            judged_shapes(group, mine, denominators),
        )
    return scored
