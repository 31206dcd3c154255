"""From iterations that brought a gain to drafts of wiki cards: what the campaign measured, for a person to review.

A draft says what was changed, what was expected and measured, and where the records are. It cannot say why: lines that
begin with the mark of a review ask for that, and `atrex wiki check` refuses them in a card.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.optimize.ask import campaign_id
from atrex.optimize.model import BASELINE, Evidence, Record, ShapeEvidence
from atrex.optimize.store import Campaign
from atrex.wiki.check import checkout
from atrex.wiki.drafts import Written, write_draft
from atrex.wiki.load import load_wiki
from atrex.wiki.schema import REVIEW, Kind
from atrex.wiki.vocabulary import vocabulary

_DIFF_LINES, _FIGURES, _TITLE, _ID = 60, 8, 110, 60


@dataclass(frozen=True)
class _Gain:
    """One confirmed gain: its record, the evidence before and, where the campaign went on, after it."""

    campaign: Campaign
    record: Record
    before: Evidence
    after: Evidence | None
    incumbent: Record

    @property
    def dsl(self) -> str:
        return self.campaign.settings.dsl_of(self.campaign.candidate(self.record.number))


def draft_campaign(campaign: Campaign, folder: Path) -> list[Written]:
    """Write a draft for each accepted iteration whose interval lies above 1. Raises UserError."""
    return [write_draft(folder, _front(gain), "\n\n".join(_body(gain))) for gain in _gains(campaign)]


def _gains(campaign: Campaign) -> Iterator[_Gain]:
    memory = {record.number: record for record in campaign.memory}
    for number, record in memory.items():
        v = record.validation
        if number == BASELINE or v.outcome != "promoted" or v.low is None or v.low <= 1:
            continue
        before = campaign.get(campaign.first_of(number), "evidence")
        later = [n for n in campaign.numbers if n > number and campaign.has(n, "evidence")]
        after = campaign.get(later[0], "evidence") if later else None
        after = after if after is not None and after.incumbent == number else None
        yield _Gain(campaign, record, before, after, memory[record.incumbent])


# -- front matter ------------------------------------------------------------------------------------------------------


def _front(gain: _Gain) -> dict[str, Any]:
    settings, record = gain.campaign.settings, gain.record
    plan, v, known = record.plan, record.validation, vocabulary()
    arch = [name for name, about in known.architectures.items() if settings.chip in about["chips"]]
    change = _sentence(plan.change)
    gained = f", {v.ratio:.2f} times as fast on {settings.chip}"
    front: dict[str, Any] = {
        "id": _id(gain),
        "kind": Kind.PATTERN.value,
        "title": change[: _TITLE - len(gained)].rstrip() + gained,
    }
    if arch:
        front |= {"vendor": known.vendor_of(arch[0]), "arch": arch}
    if gain.dsl in known.dsls:
        front["dsl"] = [gain.dsl]
    if settings.operator in known.operators:
        front["operators"] = [settings.operator]
    front["words"] = [plan.category]
    front["statement"] = {
        "claim": f"Where {settings.operator} was held back by {_plain(plan.bottleneck)}, this change made it "
        f"{v.ratio:.3f} times as fast on {settings.chip}: {change} [1]",
        "test": f"`atrex compare` of the kernel before and the kernel after: the interval lies above 1; it was "
        f"{v.low:.3f} to {v.high:.3f}",
    }
    if relations := _relations(plan.cards):
        front["relations"] = relations
    front["sources"] = [
        {"title": title, "where": f"{_where(gain.campaign)}/{name}", "date": record.created[:10]}
        for title, name in _sources(gain)
    ]
    return front


def _id(gain: _Gain) -> str:
    settings, record = gain.campaign.settings, gain.record
    end = f"{record.plan.category}-{gain.dsl}-{campaign_id(gain.campaign)[:6]}-{record.number}".replace("_", "-")
    start = re.sub(r"[^a-z0-9]+", "-", settings.operator.lower()).strip("-")
    return f"{start[: _ID - len(end) - 1].strip('-')}-{end}"


def _relations(cards: list[str]) -> dict[str, list[str]]:
    """To the cards that the plan stood on: a sheet is needed, of any other this is a narrower case."""
    wiki, found = load_wiki(), {}
    for card in dict.fromkeys(cards):
        if card in wiki.cards:
            kind = "needs" if wiki.card(card).kind == Kind.HARDWARE else "specializes"
            found.setdefault(kind, []).append(card)
    return found


def _where(campaign: Campaign) -> str:
    """The campaign's folder in the project, or the one where it belongs when it is to be a source."""
    root, path = checkout(), campaign.path.resolve()
    if root is not None and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return f"results/campaigns/{path.name}"


def _sources(gain: _Gain) -> list[tuple[str, str]]:
    settings, number = gain.campaign.settings, gain.record.number
    about = f"a campaign on {settings.operator} in {gain.dsl} on {settings.chip}"
    first = gain.campaign.first_of(number)
    found = [
        (f"Record {number} of {about}", f"memory/{number:04d}.json"),
        (f"Rounds of the contest that decided on it, {about}", f"measurements/{number:04d}-contest.json"),
        (f"Evidence before it, {about}", f"iterations/{first:04d}/evidence.json"),
        (f"All records of {about}", "memory"),
    ]
    if gain.after is not None:
        later = next(n for n in gain.campaign.numbers if n > number and gain.campaign.has(n, "evidence"))
        found.append((f"Evidence after it, {about}", f"iterations/{later:04d}/evidence.json"))
    return found


# -- text --------------------------------------------------------------------------------------------------------------


def _body(gain: _Gain) -> Iterator[str]:
    plan, v = gain.record.plan, gain.record.validation
    yield (
        f"{REVIEW} made by `atrex wiki drafts` from one campaign: one operator, one chip. Check every sentence, say "
        "for what else it holds, and take these lines out."
    )
    yield "## What to look for"
    yield from _seen(gain)
    yield "## Why it happens"
    yield f"{REVIEW} the mechanism, down to what the hardware does. The plan took it for: {_plain(plan.bottleneck)}."
    yield "## What to change"
    yield f"{_sentence(plan.change)}. The campaign planned it as {plan.category.replace('_', ' ')} [1]."
    yield from _edit(gain)
    yield "## What it should bring"
    yield (
        f"Predicted {plan.gain:.3f} times as fast, measured {v.ratio:.3f} times ({v.low:.3f} to {v.high:.3f}, 95 % "
        f"interval over {v.rounds} rounds of fresh processes) [1, 2]. The decision's share of the campaign's error "
        f"rate was {v.error:.4f} [1]."
    )
    yield from _times(gain)
    yield "## When not to"
    yield f"{REVIEW} where it costs more than it brings."
    if plan.risks:
        yield f"The plan named as risks: {_plain(plan.risks)} [1]."
    yield from _others(gain)


def _seen(gain: _Gain) -> Iterator[str]:
    before, shape = gain.before, gain.before.worst_shape
    old = before.shapes[shape]
    yield (
        f"{_sentence(before.bottleneck)}, by {_plain(before.tool)}. On shape {shape}, which lost most time to its "
        f"roofline, a forward took {old.median_us:.1f} us where the {old.bound} bound allows {old.roofline_us:.1f} us "
        "[3]."
    )
    new = gain.after.shapes.get(shape) if gain.after else None
    names = [name for name in old.figures if new is None or name in new.figures][:_FIGURES]
    if not names:
        return
    after = " after |" if new else ""
    head = f"| figure on shape {shape} | before |{after}\n|---|---|{'---|' if new else ''}"
    rows = [f"| `{name}` | {_row(name, old, new)} |" for name in names]
    cited = "[3, 5]" if new else "[3]"
    yield f"Figures of that shape, in the units that their names give {cited}:\n\n" + "\n".join([head, *rows])
    if gain.after is not None:
        yield f"After the change the bottleneck was {_plain(gain.after.bottleneck)} [5]."


def _row(name: str, old: ShapeEvidence, new: ShapeEvidence | None) -> str:
    return " | ".join(f"{each.figures[name]:.6g}" for each in (old, new) if each is not None)


def _edit(gain: _Gain) -> Iterator[str]:
    campaign, v = gain.campaign, gain.record.validation
    before = campaign.candidate(gain.record.incumbent).read_text(encoding="utf-8").splitlines()
    after = campaign.candidate(gain.record.number).read_text(encoding="utf-8").splitlines()
    lines = [line.rstrip() for line in difflib.unified_diff(before, after, n=1, lineterm="")][2:]
    added, taken = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    where = (
        ", ".join(f"`{name}`" for name in _changed("\n".join(before), "\n".join(after))) or "no function of Python's"
    )
    kind = f"Its edit reads as {v.classified.replace('_', ' ')}" if v.classified else "No rule knows its edit"
    yield f"{kind}; {added} lines came and {taken} went, in {where} [1]."
    cut = [f"... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    yield "\n".join(["```diff", *lines[:_DIFF_LINES], *cut, "```"])


def _changed(before: str, after: str) -> list[str]:
    """Names of functions and classes' methods that came, went or differ."""
    old, new = _functions(before), _functions(after)
    return sorted(name for name in old | new if old.get(name) != new.get(name))


def _functions(source: str) -> dict[str, str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: ast.dump(node) for node in ast.walk(tree) if isinstance(node, kinds)}


def _times(gain: _Gain) -> Iterator[str]:
    old, new = gain.incumbent.validation, gain.record.validation
    shapes = [shape for shape in new.median_us if shape in old.median_us]
    if not shapes:
        return
    rows = [f"| {shape} | {old.median_us[shape]:.1f} | {new.median_us[shape]:.1f} |" for shape in shapes]
    head = "| shape | before, us | after, us |\n|---|---|---|"
    yield "Medians of one judgement each, made at other times than the contest [4]:\n\n" + "\n".join([head, *rows])
    if old.S_i is not None and new.S_i is not None:
        yield f"S of the operator went from {old.S_i:.3f} to {new.S_i:.3f} in these judgements [4]."


def _others(gain: _Gain) -> Iterator[str]:
    """What the campaign tried in the same category without a gain."""
    category = gain.record.plan.category
    failed = [
        record
        for record in gain.campaign.memory
        if record.plan and record.category == category and record.validation.outcome in ("no_gain", "slower_shape")
    ]
    if failed:
        told = "; ".join(_plain(record.plan.change) for record in failed[:3])
        many = f"{len(failed)} other changes" if len(failed) > 1 else "another change"
        yield f"In the same campaign {many} of this category brought no gain: {told} [4]."


def _sentence(text: str) -> str:
    plain = _plain(text)
    return plain[:1].upper() + plain[1:]


def _plain(text: str) -> str:
    """An agent's words on one line, without what a card would read as headings or citations."""
    return re.sub(r"[\[\]#|`]", "", " ".join(text.split())).rstrip(". ")
