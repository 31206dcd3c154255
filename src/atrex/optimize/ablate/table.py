"""From the lines of an ablation to its table: a row a policy, and the policies against each other."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atrex.optimize.ablate.campaigns import name

CONFIDENCE = 0.95
_RESAMPLES = 9999


@dataclass(frozen=True)
class Estimate:
    """A mean with its bootstrap interval (percentile), both of the same unit as the values."""

    mean: float
    low: float
    high: float

    def exp(self) -> Estimate:
        """Of logarithms: the geometric mean."""
        return Estimate(math.exp(self.mean), math.exp(self.low), math.exp(self.high))


@dataclass(frozen=True)
class Row:
    """Of one policy. `final` and `area` are time ratios, baseline over incumbent: at the end of the budget, and the
    mean of its logarithm over all measurements of the budget (the area under the curve of the incumbent).
    """

    policy: str
    campaigns: int
    final: Estimate
    area: Estimate
    spent: Estimate
    restarts: Estimate
    proposals: Estimate
    repeated: Estimate
    duplicates: Estimate


@dataclass(frozen=True)
class Against:
    """Policy `b` over policy `a`, by campaigns of the same number: ratio of the geometric means, two-sided p of a
    permutation test on the signs of the differences, and that p after Holm's correction over all pairs.
    """

    a: str
    b: str
    figure: str
    ratio: Estimate
    p: float
    holm: float = 1.0


@dataclass(frozen=True)
class Table:
    rows: list[Row]
    against: list[Against]


def tabulate(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The table of an ablation whose kernels were measured again. Campaigns count as far as every policy has them."""
    design = lines[0]["design"]
    logs = gains(lines)
    by: dict[str, dict[int, Mapping[str, Any]]] = {policy: {} for policy in design["policies"]}
    for line in lines:
        if "policy" in line:
            by[line["policy"]][line["number"]] = line
    numbers = sorted(set.intersection(*(set(each) for each in by.values())))
    finals, areas, rows = {}, {}, []
    for policy, found in by.items():
        chosen = [found[number] for number in numbers]
        finals[policy] = [curve(line, logs)[-1][1] for line in chosen]
        areas[policy] = [area(curve(line, logs), design["budget"]) for line in chosen]
        counts = {
            key: estimate([float(line[key]) for line in chosen])
            for key in ("spent", "restarts", "proposals", "repeated", "duplicates")
        }
        rows.append(Row(policy, len(chosen), estimate(finals[policy]).exp(), estimate(areas[policy]).exp(), **counts))
    against = []
    for figure, values in (("final", finals), ("area", areas)):
        pairs = list(itertools.combinations(by, 2))
        found = [_against(a, b, figure, values[a], values[b]) for a, b in pairs]
        against += _holm(found)
    return Table(rows, against)


def gains(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Log of the time ratio, baseline over kernel, of every kernel measured again: the median over its rounds of the
    mean over shapes.
    """
    seen: dict[str, list[float]] = {}
    for line in lines:
        for kernel, pairs in line.get("us", {}).items():
            seen.setdefault(kernel, []).append(statistics.fmean(math.log(a / b) for a, b in pairs))
    return {kernel: statistics.median(found) for kernel, found in seen.items()}


def curve(line: Mapping[str, Any], logs: Mapping[str, float]) -> list[tuple[int, float]]:
    """(measurements spent, log gain of the incumbent from there on) of one campaign, from the baseline on."""
    return [(0, 0.0)] + [(found["at"], logs[name(found["knobs"])]) for found in line["accepted"]]


def area(steps: Sequence[tuple[int, float]], budget: int) -> float:
    """Mean of a step curve over 0 to `budget`."""
    ends = [at for at, _ in steps[1:]] + [budget]
    return sum(height * (end - at) for (at, height), end in zip(steps, ends, strict=True)) / budget


def estimate(values: Sequence[float]) -> Estimate:
    from scipy import stats

    middle = statistics.fmean(values)
    if len(set(values)) < 2:
        return Estimate(middle, middle, middle)
    found = stats.bootstrap(
        (values,), _mean, confidence_level=CONFIDENCE, n_resamples=_RESAMPLES, method="percentile", random_state=0
    )
    return Estimate(middle, float(found.confidence_interval.low), float(found.confidence_interval.high))


def _mean(values, axis):
    return values.mean(axis=axis)


def _against(a: str, b: str, figure: str, first: Sequence[float], second: Sequence[float]) -> Against:
    from scipy import stats

    differences = [y - x for x, y in zip(first, second, strict=True)]
    ratio, p = estimate(differences).exp(), 1.0
    if any(differences):
        p = stats.permutation_test(
            (differences,), _mean, permutation_type="samples", n_resamples=_RESAMPLES, random_state=0
        ).pvalue
    return Against(a, b, figure, ratio, float(p))


def _holm(found: list[Against]) -> list[Against]:
    """Adjusted p-values, in the order given."""
    adjusted, largest = {}, 0.0
    for rank, each in enumerate(sorted(found, key=lambda one: one.p)):
        largest = max(largest, min(1.0, each.p * (len(found) - rank)))
        adjusted[each.a, each.b] = largest
    return [Against(each.a, each.b, each.figure, each.ratio, each.p, adjusted[each.a, each.b]) for each in found]
