"""Several samples of one system: pass@k, and intervals of its figures over the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from atrex.report import figures
from atrex.report.study.difficulty import by_system
from atrex.report.study.sets import CandidateSet
from atrex.report.study.table import Column, Table

CONFIDENCE = 0.95
_KS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
_FIGURES = {  # field of Summary -> name
    "s_agg": "S_agg", "s_agg_strict": "S_agg, strict", "s_agg_attainable": "S_agg, attainable", "s_median": "S",
    "compile_rate": "compiled",
    "correctness": "correct", "adoption": "DSL share",
}  # fmt: skip


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k samples, drawn from n of which c are correct, is correct: 1 - C(n-c,k)/C(n,k).

    Unbiased for the pass@k of what the samples were drawn from. Source: Chen et al. 2021, "Evaluating Large Language
    Models Trained on Code", equation 1. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {c} correct among {n} samples is not defined")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_table(sets: Sequence[CandidateSet]) -> Table:
    """A row a sampled system and k, both over the operators that all its samples were judged on, shape for shape.

    `operators`: an operator is solved when every judged shape is correct. `units`: shape by shape, the mean over an
    operator's shapes and then over operators, which for k = 1 is the mean correctness over what was judged.
    """
    rows = []
    for system, samples in by_system(sets).items():
        n = len(samples)
        first = samples[0].judged
        common = [name for name in first if all(s.judged.get(name) == first[name] for s in samples)]
        if n < 2 or not common:
            continue
        solved = {name: sum(s.pass_rate(name) == 1 for s in samples) for name in common}
        units = {name: _correct_by_shape(samples, name) for name in common}
        for k in sorted({k for k in (*_KS, n) if k <= n}):
            rows.append({
                "system": system,
                "k": k,
                "samples": n,
                "over": len(common),
                "operators": fmean(pass_at_k(n, c, k) for c in solved.values()),
                "units": fmean(fmean(pass_at_k(n, c, k) for c in counts) for counts in units.values()),
            })  # fmt: skip
    columns = [
        Column("system", "system"),
        Column("k", "k"),
        Column("samples", "samples"),
        Column("over", "operators"),
        Column("operators", "pass@k, fully correct", figures.percent),
        Column("units", "pass@k, by unit", figures.percent),
    ]
    notes = ["unbiased estimate 1 - C(n-c,k)/C(n,k), operator-balanced, over the operators that every sample answered"]
    return Table("pass_at_k", "pass@k", columns, rows, notes)


def interval_table(sets: Sequence[CandidateSet]) -> Table:
    """A row a sampled system and figure: the mean over samples, and Student's interval of that mean, kept in 0..1."""
    rows = []
    for system, samples in by_system(sets).items():
        for key, name in _FIGURES.items():
            values = [v for s in samples if (v := getattr(s.summary, key)) is not None]
            if len(values) < 2:
                continue
            low, high = mean_interval(values)
            rows.append({
                "system": system, "figure": name, "samples": len(values), "mean": fmean(values),
                "low": low, "high": high, "min": min(values), "max": max(values),
            })  # fmt: skip
    columns = [
        Column("system", "system"),
        Column("figure", "figure"),
        Column("samples", "samples"),
        *(Column(key, key, figures.score) for key in ("mean", "low", "high", "min", "max")),
    ]
    notes = [f"low and high: {CONFIDENCE:.0%} interval (Student's) of the mean over samples of the same problems"]
    return Table("intervals", "Figures over samples", columns, rows, notes)


def _correct_by_shape(samples: Sequence[CandidateSet], operator: str) -> list[int]:
    """For every judged shape of an operator, in how many samples it is correct."""
    right = [{r.shape for r in s.records if r.operator == operator and r.correct and not r.held_out} for s in samples]
    return [sum(shape in found for found in right) for shape in sorted(samples[0].judged[operator])]


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean of two values or more, kept within 0 and 1."""
    from scipy import stats

    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return max(0.0, fmean(values) - half), min(1.0, fmean(values) + half)
