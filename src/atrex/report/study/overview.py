"""The figures that a set is first asked for, each with an interval: S_agg, attainable S_agg, correctness, adoption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from atrex.report.study.difficulty import by_system
from atrex.report.study.samples import mean_interval
from atrex.report.study.sets import CandidateSet
from atrex.report.study.table import Column, Row, Table
from atrex.scoring.units import headline, unit_score

FIGURES = {
    "s_agg": "S_agg", "s_agg_attainable": "attainable S_agg", "correctness": "correctness", "adoption": "adoption",
}  # fmt: skip
"""Field of Summary -> name."""
_TIMED = {"s_agg": "S", "s_agg_attainable": "attainable_S"}
SAMPLES, TIMES = "samples", "times"


def overview(sets: Sequence[CandidateSet]) -> Table:
    """A row a system: the mean of each figure over its samples, `_low` and `_high`, `over` is which interval.

    `samples`: Student's interval of the mean over two samples or more. `times`: one sample has an interval in its
    S_agg alone, `timing_bounds`; that of a rate would say something of other operators or other samples, which one
    sample does not tell.
    """
    rows = []
    for system, samples in by_system(sets).items():
        several = len(samples) > 1
        row: Row = {"system": system, "samples": len(samples), "over": SAMPLES if several else TIMES}
        for key in FIGURES:
            values = [v for s in samples if (v := getattr(s.summary, key)) is not None]
            low = high = None
            if len(values) > 1:
                low, high = mean_interval(values)
            elif not several and key in _TIMED and values:
                low, high = timing_bounds(samples[0], _TIMED[key])
            row |= {key: fmean(values) if values else None, f"{key}_low": low, f"{key}_high": high}
        rows.append(row)
    keys = [k for key in FIGURES for k in (key, f"{key}_low", f"{key}_high")]
    columns = [Column(key, key) for key in ("system", "samples", *keys, "over")]
    return Table("overview", "Overview", columns, rows, shown=False)


def timing_bounds(s: CandidateSet, column: str = "S") -> tuple[float, float]:
    """S_agg were every time of a set at the upper, and at the lower end of its 95 % interval.

    Wider than a 95 % interval of S_agg: that would take the units' errors as independent. An S of 1 is not passed.
    """
    slow: dict[str, list[float]] = {}
    fast: dict[str, list[float]] = {}
    for record in headline(s.records):
        value = unit_score(record, column)
        if value is None or record.performance is None:
            continue
        us, (low, high) = record.performance.median_us, record.performance.ci_us
        slow.setdefault(record.operator, []).append(value * us / max(high, us))
        best = value * us / min(low, us) if low > 0 else math.inf
        fast.setdefault(record.operator, []).append(min(1.0, best) if column == "S" else best)
    bounds = [
        math.fsum(s.weights.values.get(name, 0.0) * median(values) for name, values in found.items())
        for found in (slow, fast)
    ]
    return bounds[0], bounds[1]
