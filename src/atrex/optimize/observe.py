"""From measurements of the incumbent to evidence with one named bottleneck, and to the cards that speak of it."""

from __future__ import annotations

from collections.abc import Sequence

from atrex.errors import UserError
from atrex.hardware.chip import CPU
from atrex.optimize.lab import Lab
from atrex.optimize.model import Evidence, Knowledge, Record, ShapeEvidence
from atrex.optimize.store import Campaign
from atrex.profiling.evidence import Evidence as Profile
from atrex.scoring.operators import DOMINANT_SHARE
from atrex.scoring.records import UnitRecord

CARDS = 6
_HOST_BOUND, _NEAR_FLOOR = 1.0, 2.0


def evidence(campaign: Campaign, incumbent: Record, lab: Lab) -> Evidence:
    """What keeps the incumbent from the roofline, on the shape that loses most time to it.

    From the judge's records of every shape and, where there is one, a profiler's of that shape. A profiler that fails
    is no end of a campaign: the notes say why.
    """
    records = campaign.judged(incumbent.number)
    shapes, worst = _shapes(records), worst_of(records)
    lost = shapes[worst].median_us - shapes[worst].roofline_us
    tool, named, notes = "the judge's clocks, host time and owners of time", None, []
    try:
        profile = lab.look(campaign.kernel, worst)
    except UserError as fault:
        profile, notes = None, [f"no profile: {fault}"]
    if profile is not None:
        shapes[worst].figures |= profile.figures()
        tool = f"{profile.tool} {profile.tool_version}"
        named, notes = (_in_aten(profile), _told(profile)) if profile.chip == CPU else _advised(profile)
    return Evidence(
        tool=tool, incumbent=incumbent.number, shapes=shapes, worst_shape=worst,
        bottleneck=named or _bottleneck(shapes[worst]), lost_us=lost, notes=notes,
    )  # fmt: skip


def worst_of(records: Sequence[UnitRecord]) -> str:
    """The shape that loses most time to the roofline, of those that were timed."""
    shapes = _shapes(records)
    return max(shapes, key=lambda shape: shapes[shape].median_us - shapes[shape].roofline_us)


def knowledge(campaign: Campaign, seen: Evidence) -> Knowledge:
    """Cards for the bottleneck: what the wiki finds for it, the operator and the DSL. Ids of the best, best first."""
    from atrex.wiki.search import Filters, search

    settings = campaign.settings
    query = " ".join([seen.bottleneck, settings.operator.replace("_", " "), *settings.dsls])
    dsl = settings.dsl if settings.dsl != "cpp" and len(settings.dsls) == 1 else None
    hits = search(query, Filters(dsl=dsl), k=CARDS).hits
    return Knowledge(query=query, cards=[hit.id for hit in hits])


def _shapes(records: Sequence[UnitRecord]) -> dict[str, ShapeEvidence]:
    return {
        record.shape: ShapeEvidence(
            median_us=record.performance.median_us,
            roofline_us=record.roofline.roofline_us,
            share=record.roofline.roofline_us / record.performance.median_us,
            bound=record.roofline.bound,
            figures=_figures(record),
        )
        for record in records
        if record.performance and record.roofline and not record.held_out
    }


def _advised(profile: Profile) -> tuple[str | None, list[str]]:
    """The bottleneck that a device's counters name, if they name one, and what else they say."""
    from atrex.wiki.advise import advise

    advice = advise(profile)
    named = advice.symptoms[0].title if advice.symptoms else None
    return named, [advice.verdict, *(symptom.says for symptom in advice.symptoms[1:])]


def _in_aten(profile: Profile) -> str | None:
    """A bottleneck on the CPU that needs no counter: more than half of the time is in ATen's own operations."""
    if profile.counters["atrex.aten_share"] <= DOMINANT_SHARE or not profile.kernels:
        return None
    return f"time in ATen operations outside the kernel, {profile.kernels[0].name} first"


def _told(profile: Profile) -> list[str]:
    """What was seen on the CPU, in lines."""
    figures = profile.figures()
    notes = [f"{figures['atrex.forward_us']:.1f} us a forward, {figures['atrex.aten_share']:.0%} in ATen operations"]
    notes += [f"{each.name}: {each.us:.1f} us" for each in profile.kernels[:3]]
    if "atrex.instructions_per_cycle" in figures:
        notes.append(f"{figures['atrex.instructions_per_cycle']:.2f} instructions a cycle")
    return notes + ([profile.note] if profile.note else [])


def _figures(record: UnitRecord) -> dict[str, float]:
    timed, found = record.performance, {}
    for name in ("host_us", "kernel_us", "p10_us", "p90_us"):
        value = getattr(timed, name)
        if value is not None:
            found[f"atrex.{name}"] = value
    if record.adoption:
        found["atrex.dsl_share"] = record.adoption.share
    if record.roofline.floor_us:
        found["atrex.floor_us"] = record.roofline.floor_us
    return found


def _bottleneck(shape: ShapeEvidence) -> str:
    """A bottleneck named from clocks alone: the host, the launch floor, or the resource that bounds the shape."""
    figures = shape.figures
    kernel = figures.get("atrex.kernel_us", shape.median_us)
    if figures.get("atrex.host_us", 0.0) > _HOST_BOUND * shape.median_us:
        return "host time of the launch"
    if figures.get("atrex.floor_us", 0.0) * _NEAR_FLOOR > kernel:
        return "launch overhead of a tiny kernel"
    if kernel < 0.5 * shape.median_us:
        return "gaps between kernels, launches that could be one"
    if shape.bound == "memory":
        return "memory bandwidth below the roofline"
    return f"{shape.bound} throughput below its peak"
