"""A scored run as one JSON document, the output of `atrex score --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from atrex.scoring.baselines import baseline_groups, baseline_rows
from atrex.scoring.candidates import CandidateScore, score_run
from atrex.scoring.failures import MAPPING_NOTE, exit_code, failures
from atrex.scoring.operators import OperatorScore
from atrex.scoring.records import UnitRecord
from atrex.scoring.runs import Run
from atrex.scoring.weights import Weights

SCHEMA = 1


def score_document(
    runs: Sequence[Run], weights: Weights, denominators: Mapping[str, int], units: bool = False
) -> dict[str, Any]:
    """Every run scored. Times are microseconds, rates and S are 0..1, what was not measured is null.

    {"schema": 1, "weights": {"source", "notes"}, "exit_code": 0 | 1,
     "runs": [{"run": path or null, "atrex", "suite_version", "suite_hash", "device", "chip", "created", "notes",
       "candidates": [{"candidate", "device", "chip", "dsl": [name],
         "summary": the fields of `atrex.scoring.aggregate.Summary`,
         "operators": [the fields of `atrex.scoring.operators.OperatorScore`, "fully_correct", "dominant"],
         "failures": {"rows": [{"stage", "title", "count", "share", "by_category"}], "note"},
         "units": [unit records] if `units`}],
       "baselines": [{"baseline", "device", "chip", "origin": fields of `Origin`, "operators": [{"operator", "calls",
         "note", "shapes", "correct", "median_us": {shape: us}, "s", "attainable"}], "units" as above}]}]}

    Baselines take no part in the scores: they have no summary.

    Raises ValueError, naming the run, where scoring does.
    """
    return {
        "schema": SCHEMA,
        "weights": {"source": weights.source, "notes": weights.notes},
        "exit_code": max((exit_code(run.records) for run in runs), default=0),
        "runs": [_run(run, weights, denominators, units) for run in runs],
    }


def _run(run: Run, weights: Weights, denominators: Mapping[str, int], units: bool) -> dict[str, Any]:
    try:
        scored = score_run(run.run, run.records, weights.values, denominators)
    except ValueError as e:
        raise ValueError(f"{run.path or 'this run'}: {e}") from None
    told = ("atrex", "suite_version", "suite_hash", "device", "chip", "created")
    return {
        "run": str(run.path) if run.path else None,
        **{key: run.run.get(key) for key in told},
        "notes": run.notes,
        "candidates": [_candidate(label, candidate, units) for label, candidate in scored.items()],
        "baselines": [
            _baseline(label, group, denominators, units) for label, group in baseline_groups(run.records).items()
        ],
    }


def _baseline(label: str, records: Sequence[UnitRecord], denominators: Mapping[str, int], units: bool) -> dict:
    first = records[0]
    document = {
        "baseline": label,
        "device": first.device,
        "chip": first.chip,
        "origin": first.baseline.model_dump(mode="json", include={"name", "library", "version"}),
        "operators": [asdict(row) for row in baseline_rows(records, denominators)],
    }
    if units:
        document["units"] = [r.model_dump(mode="json") for r in records]
    return document


def _candidate(label: str, candidate: CandidateScore, units: bool) -> dict[str, Any]:
    first = candidate.records[0]
    document = {
        "candidate": label,
        "device": first.device,
        "chip": first.chip,
        "dsl": sorted({r.dsl for r in candidate.records}),
        "summary": asdict(candidate.summary),
        "operators": [_operator(score) for score in candidate.operators.values()],
        "failures": {
            "rows": [
                {"stage": c.row.stage, "title": c.row.title, "count": c.count, "share": c.share,
                 "by_category": c.by_category}
                for c in failures(candidate.records)
            ],
            "note": MAPPING_NOTE,
        },
    }
    if units:
        document["units"] = [r.model_dump(mode="json") for r in candidate.records]
    return document


def _operator(score: OperatorScore) -> dict[str, Any]:
    return {**asdict(score), "fully_correct": score.fully_correct, "dominant": score.dominant}
