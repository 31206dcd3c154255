"""A campaign as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atrex.optimize.model import Mask, Record
from atrex.optimize.store import Campaign


def story(campaign: Campaign) -> Iterator[str]:
    """Lines of text: the aim, then iteration after iteration, with restarts where they fell."""
    s = campaign.settings
    yield f"{s.operator} in {s.dsl} on {s.chip}, shapes {', '.join(s.shapes)}; error {s.error:g} over the campaign"
    masks, memory = list(campaign.masks), campaign.memory
    for record in memory:
        while masks and masks[0].after < record.number:
            yield from _restart(masks.pop(0))
        yield ""
        yield from _chapter(campaign, record, memory)
    for mask in masks:
        yield from _restart(mask)
    last = campaign.numbers[-1] if campaign.numbers else 0
    if campaign.has(last, "stop"):
        stop = campaign.get(last, "stop")
        yield ""
        yield f"{stop.what.capitalize()}: {stop.reason}{' (from outside)' if stop.external else ''}"


def _restart(mask: Mask) -> Iterator[str]:
    hidden = ", ".join(map(str, mask.hidden)) or "nothing"
    yield ""
    yield f"Restart {mask.session} ({mask.policy}): {hidden} hidden from here on."


def _chapter(campaign: Campaign, record: Record, memory: Sequence[Record]) -> Iterator[str]:
    v = record.validation
    if record.plan is None:
        yield f"Baseline: {_times(v.median_us)}; S {_figure(v.S_i)}"
        return
    first = campaign.first_of(record.number)
    together = [each.number for each in memory if campaign.first_of(each.number) == first]
    if record.number == first:
        yield f"Iteration {record.number}, on the kernel of {record.incumbent}"
        seen = campaign.get(first, "evidence")
        where = f"{seen.lost_us:.1f} us over the roofline on shape {seen.worst_shape}"
        yield f"  seen: {seen.bottleneck}; {where} ({seen.tool})"
        yield f"  opened: {', '.join(campaign.get(first, 'knowledge').cards) or 'nothing'}"
    if len(together) > 1:
        yield f" Attempt {record.number}, {together.index(record.number) + 1} of {len(together)} from that kernel"
    yield f"  planned ({record.plan.category}): {record.plan.change}; predicted x{record.plan.gain:.2f}"
    if v.classified and v.classified != record.plan.category:
        yield f"  the edit looks like {v.classified}, not {record.plan.category}"
    rounds = f"{v.rounds} rounds{' of its heat' if v.outcome == 'not_selected' else ''}"
    sure = f" at {v.confidence:.1%}" if v.confidence else ""
    measured = f", measured x{v.ratio:.3f} [{v.low:.3f}, {v.high:.3f}]{sure} in {rounds}" if v.ratio else ""
    yield f"  {v.outcome}{measured}{f': {v.reason}' if v.reason else ''}; S {_figure(v.S_i)}"


def _times(median_us: dict[str, float]) -> str:
    return ", ".join(f"{shape} {us:.1f} us" for shape, us in median_us.items()) or "no times"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
