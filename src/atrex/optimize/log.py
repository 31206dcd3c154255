"""A campaign as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator

from atrex.optimize.model import Record
from atrex.optimize.store import Campaign


def story(campaign: Campaign) -> Iterator[str]:
    """Lines of text: the aim, then iteration after iteration, with restarts where they fell."""
    s = campaign.settings
    yield f"{s.operator} in {s.dsl} on {s.chip}, shapes {', '.join(s.shapes)}; error {s.error:g} over the campaign"
    masks = {mask.after: mask for mask in campaign.masks}
    for record in campaign.memory:
        yield ""
        yield from _chapter(campaign, record)
        if record.number in masks:
            mask = masks[record.number]
            hidden = ", ".join(map(str, mask.hidden)) or "nothing"
            yield f"Restart {mask.session} ({mask.policy}): {hidden} hidden from here on."
    last = campaign.numbers[-1] if campaign.numbers else 0
    if campaign.has(last, "stop"):
        stop = campaign.get(last, "stop")
        yield ""
        yield f"{stop.what.capitalize()}: {stop.reason}{' (from outside)' if stop.external else ''}"


def _chapter(campaign: Campaign, record: Record) -> Iterator[str]:
    v = record.validation
    if record.plan is None:
        yield f"Baseline: {_times(v.median_us)}; S {_figure(v.S_i)}"
        return
    seen = campaign.get(record.number, "evidence")
    yield f"Iteration {record.number}, on the kernel of {record.incumbent}"
    where = f"{seen.lost_us:.1f} us over the roofline on shape {seen.worst_shape}"
    yield f"  seen: {seen.bottleneck}; {where} ({seen.tool})"
    yield f"  opened: {', '.join(campaign.get(record.number, 'knowledge').cards) or 'nothing'}"
    yield f"  planned ({record.plan.category}): {record.plan.change}; predicted x{record.plan.gain:.2f}"
    if v.classified and v.classified != record.plan.category:
        yield f"  the edit looks like {v.classified}, not {record.plan.category}"
    measured = f", measured x{v.ratio:.3f} [{v.low:.3f}, {v.high:.3f}] in {v.rounds} rounds" if v.ratio else ""
    yield f"  {v.outcome}{measured}{f': {v.reason}' if v.reason else ''}; S {_figure(v.S_i)}"


def _times(median_us: dict[str, float]) -> str:
    return ", ".join(f"{shape} {us:.1f} us" for shape, us in median_us.items()) or "no times"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
