"""Device time by the operator whose problem expresses a call, where that is not the one whose kernels ran.

Flash kernels, for one, compute causal prompts, single tokens over a cache, and images without a mask. By its kernel all
of it is attention_forward; the suite has a problem for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from atrex.traces.mining.mine import Mined, Unmined
from atrex.traces.phases import DECODE, MIXED, PREFILL


def served(time: pl.DataFrame, mined: Sequence[Mined], unmined: Sequence[Unmined], mixed: str) -> pl.DataFrame:
    """`device_time` with the calls that another operator's problem expresses counted for that operator.

    `mined`, `unmined`: all calls of the suite's operators; of each family, phase and application, the part that moves
    is that of its calls' exclusive time.
    """
    whole: dict[tuple[str, str, str], float] = {}
    moved: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in [*mined, *unmined]:
        family = each.family if isinstance(each, Mined) else each.operator
        ns = each.total_ns if isinstance(each, Mined) else each.ns
        for phase, share in _phases(each.phase, each.prefill_share, mixed):
            key = (each.application, phase, family)
            whole[key] = whole.get(key, 0.0) + ns * share
            if isinstance(each, Mined) and each.operator != family:
                to = moved.setdefault(key, {})
                to[each.operator] = to.get(each.operator, 0.0) + ns * share
    rows: dict[tuple[str, str, str, str | None], float] = {}
    for app, phase, family, operator, ns in time.iter_rows():
        key = (app, phase, family)
        left = ns
        for target, part in moved.get(key, {}).items():
            goes = ns * part / whole[key]
            left -= goes
            at = (app, phase, target, target)
            rows[at] = rows.get(at, 0.0) + goes
        at = (app, phase, family, operator)
        rows[at] = rows.get(at, 0.0) + max(0.0, left)
    flat = [(*key, ns) for key, ns in rows.items() if ns > 0]
    return pl.DataFrame(flat, schema=time.schema, orient="row").sort("app", "phase", "family")


def _phases(phase: str, prefill_share: float | None, mixed: str) -> list[tuple[str, float]]:
    if phase == MIXED and mixed == "split" and prefill_share is not None:
        return [(PREFILL, prefill_share), (DECODE, 1 - prefill_share)]
    return [(phase, 1.0)]


def moved_notes(before: pl.DataFrame, after: pl.DataFrame, card_hours: Mapping[str, float]) -> list[str]:
    """What `served` did to families' device time, a sentence for each that lost any."""
    sums = [_scaled(frame, card_hours) for frame in (before, after)]
    gained = sorted(f for f, share in sums[1].items() if share > sums[0].get(f, 0.0) + 1e-9)
    return [
        f"{lost:.2%} of the device time, by card-hours, is in calls with kernels of {family} that mean "
        f"{' or '.join(gained)}: it counts for these"
        for family, share in sorted(sums[0].items())
        if (lost := share - sums[1].get(family, 0.0)) > 1e-6
    ]


def _scaled(time: pl.DataFrame, card_hours: Mapping[str, float]) -> dict[str, float]:
    """Each family's share of the device time of its application, by the applications' card-hours."""
    total = math.fsum(card_hours.values())
    whole = dict(time.group_by("app").agg(pl.col("ns").sum()).iter_rows())
    found: dict[str, float] = {}
    for app, family, ns in time.group_by("app", "family").agg(pl.col("ns").sum()).iter_rows():
        if whole[app]:
            found[family] = found.get(family, 0.0) + card_hours[app] / total * ns / whole[app]
    return found
