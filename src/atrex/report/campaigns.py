"""A campaign as data: iterations with what was seen, planned and measured, restarts, cards, spend."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.optimize.director import spent_of
from atrex.optimize.machine import position, words
from atrex.optimize.model import BASELINE, Mask, Record
from atrex.optimize.store import Campaign

MARK = "campaign.json"
LONGEST_DIFF = 4000  # lines of a source from which on a diff takes too long to compute and to read
STAGES = ("evidence", "knowledge", "plan", "closed", "candidate", "validation", "stop")


def campaign_document(campaign: Campaign, title: Callable[[str], str | None] = lambda card: None) -> dict[str, Any]:
    """Everything that a campaign's files say, as one JSON document. Times in microseconds, ratios old over new.

    `title` gives the title of a card by id. `records` of an iteration are paths below the campaign's folder. A campaign
    that is under way is told as far as it has come; raises UserError for one that is damaged.
    """
    masks, memory = campaign.masks, campaign.memory
    at = position(campaign)
    iterations = [_iteration(campaign, record, masks) for record in memory]
    best: float | None = None
    for each in iterations:
        if each["accepted"]:
            best = each["S_i"]
        each["incumbent_S"] = best
    remembered = {record.number for record in memory}
    open_ = [_begun(campaign, n) for n in campaign.numbers if n not in remembered]
    return {
        "schema": 1,
        "path": str(campaign.path),
        "settings": campaign.settings.model_dump(mode="json"),
        "roofline": campaign.roofline.model_dump(mode="json"),
        "position": {"step": at.step, "iteration": at.number, "waits_for": words(at)},
        "summary": _summary(iterations),
        "iterations": iterations,
        "open": [each for each in open_ if each["records"]],
        "masks": [mask.model_dump(mode="json") for mask in masks],
        "cards": _cards(iterations, title),
        "spend": _spend(campaign),
    }


def diff_of(campaign: Campaign, record: Record) -> str | None:
    """What an iteration changed, as a unified diff of the incumbent; of the baseline its whole source.

    None where a file is too long for one, or is not there.
    """
    new = _lines(campaign.candidate(record.number))
    if record.incumbent is None or new is None:
        return None if new is None else "\n".join(new)
    old = _lines(campaign.candidate(record.incumbent))
    if old is None:
        return None
    names = f"iteration {record.incumbent}", f"iteration {record.number}"
    return "\n".join(difflib.unified_diff(old, new, *names, lineterm=""))


def _lines(path: Path) -> list[str] | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    except OSError:
        return None
    return lines if len(lines) <= LONGEST_DIFF else None


def _iteration(campaign: Campaign, record: Record, masks: Iterable[Mask]) -> dict[str, Any]:
    v, number = record.validation, record.number
    first = campaign.first_of(number)
    return {
        "number": number,
        "iteration": first,
        "session": record.session,
        "created": record.created,
        "incumbent": record.incumbent,
        "category": record.category,
        "classified": v.classified,
        "outcome": v.outcome,
        "accepted": v.accepted,
        "reason": v.reason,
        "S_i": v.S_i,
        "S": v.S,
        "median_us": v.median_us,
        "predicted": record.plan.gain if record.plan else None,
        "ratio": v.ratio,
        "low": v.low,
        "high": v.high,
        "confidence": v.confidence,
        "rounds": v.rounds,
        "decision": v.decision,
        "error": v.error,
        "seconds": v.seconds,
        "artifact": v.artifact,
        "candidate_sha256": v.candidate_sha256,
        "plan": record.plan.model_dump(mode="json") if record.plan else None,
        **_stages(campaign, first, "evidence", "knowledge", "stop"),
        "hidden_from": [mask.session for mask in masks if number in mask.hidden],
        "diff": diff_of(campaign, record),
        "records": [f"memory/{number:04d}.json", *_files(campaign, number)],
    }


def _begun(campaign: Campaign, number: int) -> dict[str, Any]:
    """An iteration that is not in the memory yet."""
    found = _stages(campaign, number, "evidence", "knowledge", "plan", "validation", "stop")
    return {"number": number, **found, "records": _files(campaign, number)}


def _stages(campaign: Campaign, number: int, *stages: str) -> dict[str, Any]:
    there = (stage for stage in stages if campaign.has(number, stage))
    found = {stage: campaign.get(number, stage).model_dump(mode="json") for stage in there}
    return {stage: found.get(stage) for stage in stages}


def _files(campaign: Campaign, number: int) -> list[str]:
    """The files of an iteration, in the order in which they come about, then what was measured."""
    folder, measured = campaign.iteration(number), campaign.path / "measurements"
    order = {stage: i for i, stage in enumerate(STAGES)}
    found = [path for path in folder.glob("*") if path.suffix in (".json", ".py") and not path.name.startswith(".")]
    found.sort(key=lambda path: (order.get(path.stem, len(order)), path.name))
    found += sorted(p for p in measured.glob(f"{number:04d}-*") if p.suffix in (".json", ".jsonl"))
    return [path.relative_to(campaign.path).as_posix() for path in found]


def _summary(iterations: list[dict[str, Any]]) -> dict[str, Any]:
    """First and last S, and how many attempts ended in what. `ratio` is over all promotions, by their contests."""
    tried = [each for each in iterations if each["number"] != BASELINE]  # attempts, where an iteration makes several
    promoted = [each for each in tried if each["accepted"]]
    ratio = 1.0
    for each in promoted:
        ratio *= each["ratio"] or 1.0
    accepted = [each for each in iterations if each["accepted"]]
    outcomes: dict[str, int] = {}
    for each in tried:
        outcomes[each["outcome"]] = outcomes.get(each["outcome"], 0) + 1
    return {
        "iterations": len({each["iteration"] for each in tried}),
        "attempts": len(tried),
        "accepted": len(promoted),
        "outcomes": outcomes,
        "baseline_S": accepted[0]["S_i"] if accepted else None,
        "incumbent": accepted[-1]["number"] if accepted else None,
        "incumbent_S": accepted[-1]["S_i"] if accepted else None,
        "ratio": ratio if promoted else None,
        "seconds": round(sum(each["seconds"] for each in iterations), 3),
    }


def _cards(iterations: list[dict[str, Any]], title: Callable[[str], str | None]) -> list[dict[str, Any]]:
    """Every card that was opened or that a plan stands on, most cited first."""
    found: dict[str, dict[str, Any]] = {}

    def entry(card: str) -> dict[str, Any]:
        new = {"id": card, "title": title(card), "opened": [], "cited": [], "accepted": []}
        return found.setdefault(card, new)

    for each in iterations:
        for card in (each["knowledge"] or {}).get("cards", ()):
            entry(card)["opened"].append(each["number"])
        plan = each["plan"] or {"cards": [], "figures": {}}
        for card in dict.fromkeys([*plan["cards"], *plan["figures"].values()]):
            entry(card)["cited"].append(each["number"])
            if each["accepted"]:
                entry(card)["accepted"].append(each["number"])
    return sorted(found.values(), key=lambda c: (-len(c["cited"]), -len(c["opened"]), c["id"]))


def _spend(campaign: Campaign) -> dict[str, Any]:
    """Tokens and dollars, in all and by session of the agent; dollars are null where they are not known."""
    file = campaign.path / "spend.jsonl"
    try:
        total = spent_of(campaign.path)
        lines = file.read_text().splitlines() if file.exists() else []
        sessions = [json.loads(line) for line in lines]
    except (ValueError, KeyError):
        raise UserError(f"{file}: expected one JSON object a line with session, tokens and usd") from None
    kept = {path.stem: f"transcripts/{path.name}" for path in (campaign.path / "transcripts").glob("*.jsonl")}
    rows = [each | {"transcript": kept.pop(each["session"], None)} for each in sessions]
    under_way = [{"session": s, "tokens": None, "usd": None, "transcript": kept[s]} for s in sorted(kept)]
    return {"tokens": total.tokens, "usd": total.usd, "sessions": rows + under_way}
