"""From the candidates of an iteration to verdicts of the campaign: the judge's gates, the heats, the contest."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict

from atrex.optimize.classify import classify
from atrex.optimize.field import Earlier, Heat, artifact, digest, narrow, run_heat, said, short_of_contest
from atrex.optimize.lab import Lab, UnitFailed
from atrex.optimize.model import BASELINE, Validation
from atrex.optimize.patience import bounds_of
from atrex.optimize.promotion import Decision, Round, Rule, decide
from atrex.optimize.store import Campaign
from atrex.scoring.comparison import Comparison, Pair
from atrex.scoring.records import UnitRecord

Told = Callable[[str], None]
_MEASURED = ("baseline", "promoted", "no_gain", "slower_shape")  # measured as far as there is anything to measure


def validate(
    campaign: Campaign, numbers: Sequence[int], lab: Lab, until: float | None = None, told: Told = lambda line: None
) -> Iterator[tuple[int, Validation]]:
    """Judge the candidates of an iteration and contest the best of them: (number, verdict), the contested one last.

    A contest that is not over by `until` (time.monotonic()) is given up; `told` gets a line for each of its rounds.
    What was measured is left on disk, and is not measured again by a call after a crash. Raises UnitFailed when the
    incumbent itself stops passing: no verdict about a candidate follows from that.
    """
    field = _Candidates(campaign, numbers, lab, told)
    if list(numbers) == [BASELINE]:
        why = short_of_contest(field.judged(BASELINE), field.texts[BASELINE], {})
        yield BASELINE, field.verdict(BASELINE, *(why or ("baseline",)))
        return
    found = narrow(field.texts, earlier_of(campaign), field.judged, field.heat)
    for number, (outcome, reason) in sorted(found.ended.items()):
        yield number, field.verdict(number, outcome, reason, found.heats.get(number))
    if found.chosen is not None:
        yield found.chosen, field.contest(found.chosen, until)


def forget_measured(campaign: Campaign, numbers: Sequence[int]) -> None:
    """Take back what was measured of candidates on the way to their verdicts."""
    for number in numbers:
        if number != BASELINE:
            campaign.forget(_judge(number))
            campaign.forget(_heat(number))


def earlier_of(campaign: Campaign) -> Earlier:
    """What the campaign's candidates were and compiled to. What was not selected or decided may be handed in again."""
    measured = [record for record in campaign.memory if record.validation.outcome in _MEASURED]
    return Earlier(
        {r.validation.artifact: r.number for r in measured if r.validation.artifact},
        {r.validation.candidate_sha256: r.number for r in measured},
        campaign.settings.deduplicate,
    )


def decisions_of(campaign: Campaign) -> int:
    """How many decisions a campaign has spent of its error rate."""
    return sum(r.validation.decision is not None for r in campaign.memory)


class _Candidates:
    """What is known of an iteration's candidates, measured where it is not on disk."""

    def __init__(self, campaign: Campaign, numbers: Sequence[int], lab: Lab, told: Told):
        self._campaign, self._lab, self._told = campaign, lab, told
        self._sources = {number: campaign.candidate(number) for number in numbers}
        self.texts = {n: path.read_bytes().decode() for n, path in self._sources.items()}
        self._records: dict[int, Sequence[UnitRecord]] = {}
        self._took = dict.fromkeys(numbers, 0.0)

    def judged(self, number: int) -> Sequence[UnitRecord]:
        if number == BASELINE or self._campaign.measurement(_judge(number)) is None:
            began = time.monotonic()
            records = self._lab.judge(self._sources[number])
            self._campaign.measured(_judge(number), "\n".join(record.model_dump_json() for record in records))
            self._took[number] += time.monotonic() - began
        self._records[number] = self._campaign.judged(number)
        return self._records[number]

    def heat(self, number: int) -> Heat:
        stored = self._campaign.measurement(_heat(number))
        if stored is not None:
            return Heat(**json.loads(stored))
        began = time.monotonic()
        found = run_heat(self._lab.heat(self._campaign.kernel, self._sources[number]))
        self._campaign.measured(_heat(number), json.dumps(asdict(found), indent=1))
        self._took[number] += time.monotonic() - began
        return found

    def contest(self, number: int, until: float | None) -> Validation:
        campaign, began = self._campaign, time.monotonic()
        rule, bounds = Rule(error=campaign.settings.error), bounds_of(campaign.settings, until)
        try:
            with self._lab.contest(campaign.kernel, self._sources[number]) as measure:
                decision = decide(_heard(measure, self._told), decisions_of(campaign) + 1, rule, bounds)
        except UnitFailed as failed:
            if not failed.of_candidate:
                raise
            return self.verdict(number, "failed", f"in the contest, {failed.record.shape}: {said(failed.record)}")
        finally:
            self._took[number] += time.monotonic() - began
        campaign.measured(f"{number:04d}-contest.json", _document(decision))
        return self.verdict(
            number,
            {"faster": "promoted", "futile": "no_gain"}.get(decision.why, decision.why),
            f"slower on {', '.join(decision.slower)}" if decision.slower else decision.reason,
            decision=decision.number if decision.rounds else None,  # before any round there is nothing to err by
            error=decision.error if decision.rounds else None,
            rounds=decision.rounds,
            **_interval(decision.comparison),
        )

    def verdict(
        self, number: int, outcome: str, reason: str | None = None, heat: Heat | None = None, **more
    ) -> Validation:
        """A verdict with what the judge said; a heat's ratio stands for a contest that was not held."""
        records, source = self._records.get(number, ()), self.texts[number]
        S = {r.shape: r.roofline.S for r in records if r.roofline and r.roofline.S is not None}
        if heat is not None and heat.failed is None:
            more = _interval(heat.comparison) | {"rounds": heat.comparison.rounds}
        served = self._lab.seconds
        return Validation(
            outcome=outcome,
            candidate_sha256=digest(self.texts[number]),
            artifact=artifact(records, self.texts[number]),
            reason=reason,
            median_us={r.shape: r.performance.median_us for r in records if r.performance},
            S=S,
            S_i=statistics.median(S.values()) if S else None,
            classified=None if number == BASELINE else classify(self._campaign.kernel.read_text(), source).category,
            seconds=round(self._took[number] if served is None else served / len(self._sources), 3),
            **more,
        )


def _heard(measure: Round, told: Told) -> Round:
    """Rounds that are told as they come, each with the ratio of its times, the geometric mean over shapes."""
    rounds = 0

    def heard(shapes: Collection[str] | None) -> Mapping[str, Pair]:
        nonlocal rounds
        found, rounds = measure(shapes), rounds + 1
        ratio = math.exp(statistics.fmean(math.log(a / b) for a, b in found.values()))
        told(f"     round {rounds}: x{ratio:.3f}" + (f" on {', '.join(found)}, again" if shapes else ""))
        return found

    return heard


def _interval(found: Comparison | None) -> dict[str, float]:
    if found is None:
        return {}
    one = found.overall
    return {"ratio": one.ratio, "low": one.low, "high": one.high, "confidence": found.attained}


def _judge(number: int) -> str:
    return f"{number:04d}-judge.jsonl"


def _heat(number: int) -> str:
    return f"{number:04d}-heat.json"


def _document(decision: Decision) -> str:
    return json.dumps(
        {
            "number": decision.number, "error": decision.error, "level": decision.level, "why": decision.why,
            "reason": decision.reason, "slower": decision.slower, "times_us": decision.times,
            "again_us": decision.again,
        }, indent=1,
    )  # fmt: skip
