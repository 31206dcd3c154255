"""From a candidate to a verdict of the campaign: the judge's gates, dominance, duplicates, the contest."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Mapping, Sequence

from atrex.optimize.classify import classify
from atrex.optimize.lab import Lab, UnitFailed
from atrex.optimize.model import BASELINE, Validation
from atrex.optimize.promotion import Decision, Rule, decide
from atrex.optimize.store import Campaign
from atrex.scoring.operators import DOMINANT_SHARE
from atrex.scoring.records import Status, UnitRecord


def validate(campaign: Campaign, number: int, lab: Lab) -> Validation:
    """Judge and, beyond the baseline, contest the candidate of an iteration; what was measured is left on disk.

    Raises UnitFailed when the incumbent itself stops passing: no verdict about the candidate follows from that.
    """
    began = time.monotonic()
    source = campaign.candidate(number)
    records = lab.judge(source)
    lines = "\n".join(record.model_dump_json() for record in records)
    campaign.measured(f"{number:04d}-judge.jsonl", lines)
    found = {
        "candidate_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "artifact": artifact(records),
        "median_us": {r.shape: r.performance.median_us for r in records if r.performance},
        "S": {r.shape: r.roofline.S for r in records if r.roofline and r.roofline.S is not None},
    }
    if number != BASELINE:
        found["classified"] = classify(campaign.kernel.read_text(), source.read_text()).category
    found["S_i"] = statistics.median(found["S"].values()) if found["S"] else None

    def ended(outcome: str, reason: str | None = None, **more) -> Validation:
        took = lab.seconds or time.monotonic() - began
        return Validation(outcome=outcome, reason=reason, seconds=round(took, 3), **found, **more)

    earlier = measured_artifacts(campaign) if campaign.settings.deduplicate else {}
    if why := short_of_contest(records, earlier):
        return ended(*why)
    if number == BASELINE:
        return ended("baseline")
    try:
        with lab.contest(campaign.kernel, source) as measure:
            decision = decide(measure, decisions_of(campaign) + 1, Rule(error=campaign.settings.error))
    except UnitFailed as failed:
        if not failed.of_candidate:
            raise
        return ended("failed", f"in the contest, {failed.record.shape}: {_said(failed.record)}")
    campaign.measured(f"{number:04d}-contest.json", _document(decision))
    comparison = decision.comparison
    overall = comparison.overall if comparison else None
    return ended(
        {"faster": "promoted", "slower_shape": "slower_shape"}.get(decision.why, "no_gain"),
        f"slower on {', '.join(decision.slower)}" if decision.slower else None,
        decision=decision.number,
        error=decision.error,
        rounds=decision.rounds,
        ratio=overall.ratio if overall else None,
        low=overall.low if overall else None,
        high=overall.high if overall else None,
    )


def short_of_contest(records: Sequence[UnitRecord], earlier: Mapping[str, int]) -> tuple[str, str] | None:
    """Outcome and reason of a candidate that ends without a contest; None for one that is fit for it.

    `earlier` are artifacts that were measured, each with its iteration.
    """
    if wrong := _failure(records):
        return "failed", wrong
    if weak := _fallback(records):
        return "fallback", weak
    compiled = artifact(records)
    if compiled in earlier:
        return "duplicate", f"compiles to what iteration {earlier[compiled]} measured"
    return None


def measured_artifacts(campaign: Campaign) -> dict[str, int]:
    """What the campaign's candidates compiled to, each with the iteration that measured it."""
    return {r.validation.artifact: r.number for r in campaign.memory if r.validation.artifact}


def decisions_of(campaign: Campaign) -> int:
    """How many decisions a campaign has spent of its error rate."""
    return sum(r.validation.decision is not None for r in campaign.memory)


def artifact(records: Sequence[UnitRecord]) -> str | None:
    """One hash of everything that a candidate compiled to, over all shapes; None when nothing is known of some."""
    parts = []
    for record in sorted(records, key=lambda r: r.shape):
        if record.compile is None or not record.compile.artifacts:
            return None
        parts.append((record.shape, sorted(each.sha256 for each in record.compile.artifacts)))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if parts else None


def _failure(records: Sequence[UnitRecord]) -> str | None:
    for record in records:
        if record.verdict.status is not Status.PASSED:
            return f"{record.shape}: {_said(record)}"
    return None if records else "no shape was judged"


def _said(record: UnitRecord) -> str:
    verdict = record.verdict
    return f"{verdict.category or verdict.status.value}: {verdict.reason}"


def _fallback(records: Sequence[UnitRecord]) -> str | None:
    """Why the kernel is no kernel in the target DSL: on some shape, half of the time or more goes elsewhere."""
    for record in records:
        if record.held_out or record.adoption is None:
            continue
        if record.adoption.share <= DOMINANT_SHARE or record.verdict.shortcut:
            return f"{record.shape}: {record.adoption.share:.0%} of its time in {record.dsl}, over 50 % are asked for"
    return None


def _document(decision: Decision) -> str:
    return json.dumps(
        {
            "number": decision.number, "error": decision.error, "why": decision.why, "slower": decision.slower,
            "times_us": decision.times, "again_us": decision.again,
        }, indent=1,
    )  # fmt: skip
