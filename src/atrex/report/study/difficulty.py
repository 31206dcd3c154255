"""Operator difficulty across systems (the paper's Tables 5 and 9), and S by regime (its Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from atrex.problems.stats import COMPUTE_BOUND
from atrex.report import figures
from atrex.report.study.facts import Facts
from atrex.report.study.sets import CandidateSet
from atrex.report.study.table import Column, Row, Table

REGIMES = ("memory", "compute")


def by_system(sets: Sequence[CandidateSet]) -> dict[str, list[CandidateSet]]:
    """Sets by system: several where a system was sampled more than once."""
    found: dict[str, list[CandidateSet]] = {}
    for s in sets:
        found.setdefault(s.system, []).append(s)
    return found


def per_operator(sets: Sequence[CandidateSet]) -> Table:
    """A row an operator and system: pass rate and S_i, means over the system's samples."""
    rows = []
    for system, samples in by_system(sets).items():
        for operator in _operators(samples):
            judged = [s for s in samples if operator in s.judged]
            scores = [found for s in judged if (found := s.score.operators.get(operator))]
            shares = [o.adoption for o in scores if o.adoption is not None]
            rows.append({
                "operator": operator,
                "system": system,
                "samples": len(judged),
                "shapes_judged": max(len(s.judged[operator]) for s in judged),
                "pass_rate": fmean(s.pass_rate(operator) for s in judged),
                "s": fmean(s.s(operator) for s in judged),
                "dsl_share": fmean(shares) if shares else None,
            })  # fmt: skip
    columns = [Column(key, key) for key in
               ("operator", "system", "samples", "shapes_judged", "pass_rate", "s", "dsl_share")]  # fmt: skip
    return Table("operators", "Operators by system", columns, rows, shown=False)


def difficulty(sets: Sequence[CandidateSet], facts: Facts) -> Table:
    """A row an operator that was judged, hardest first. Every system counts alike, whatever the number of its samples.

    `pass_rate` is the mean over systems of correct over judged shapes; `solved_by` counts the systems with a rate of 1
    (in every sample), of `systems` that were judged on it. Each system's own rate and S_i are in `per_operator`.
    """
    rates: dict[str, list[Row]] = {}
    for row in per_operator(sets).rows:
        rates.setdefault(row["operator"], []).append(row)
    systems = list(by_system(sets))
    rows = []
    for operator, found in rates.items():
        about = facts.operators.get(operator)
        by_name = {row["system"]: row for row in found}
        rows.append({
            "operator": operator,
            "regime": about.regime if about else None,
            "intensity": about.intensity if about else None,
            "weight": sets[0].weights.values.get(operator, 0.0),
            "shapes": sets[0].shapes[operator],
            "shapes_judged": max(row["shapes_judged"] for row in found),
            "pass_rate": fmean(row["pass_rate"] for row in found),
            "solved_by": sum(row["pass_rate"] == 1 for row in found),
            "systems": len(found),
            **{f"s_{name}": by_name[name]["s"] if name in by_name else None for name in systems},
        })  # fmt: skip
    rows.sort(key=lambda row: (row["pass_rate"], -row["weight"], row["operator"]))
    columns = [
        Column("operator", "operator"),
        Column("regime", "regime"),
        Column("intensity", "FLOP/byte", _intensity),
        Column("weight", "weight", figures.percent),
        Column("shapes", "shapes"),
        Column("shapes_judged", "judged", shown=any(r["shapes_judged"] < r["shapes"] for r in rows)),
        Column("pass_rate", "pass", figures.percent),
        Column("solved_by", "solved by"),
        Column("systems", "of", shown=any(r["systems"] < len(systems) for r in rows)),
        *(Column(f"s_{name}", f"S_i {name}", figures.score, data=False) for name in systems),
    ]
    every = sum(row["solved_by"] == row["systems"] for row in rows)
    none = sum(row["pass_rate"] == 0 for row in rows)
    notes = [
        f"over {len(systems)} system{'s' * (len(systems) > 1)} and {len(rows)} operator{'s' * (len(rows) > 1)}: "
        f"{every} solved by all (every judged shape correct), {none} by none (no shape correct), "
        f"{sum(row['solved_by'] == 0 for row in rows)} fully solved by none"
    ]
    return Table("difficulty", "Operator difficulty", columns, rows, notes, left=2)


def regimes(sets: Sequence[CandidateSet], facts: Facts) -> Table:
    """A row a set: the median of S_i over its judged operators of each regime, an operator without a correct one is 0.

    Operators without arithmetic are in neither regime.
    """
    rows = []
    for s in sets:
        row: Row = {"set": s.name}
        for regime in REGIMES:
            mine = [name for name in s.judged if name in facts.operators and facts.operators[name].regime == regime]
            row[f"{regime}_s"] = median(s.s(name) for name in mine) if mine else None
            row[f"{regime}_operators"] = len(mine)
        row["without_arithmetic"] = sum(
            facts.operators[name].regime not in REGIMES for name in s.judged if name in facts.operators
        )
        rows.append(row)
    columns = [
        Column("set", "candidate set"),
        *(c for regime in REGIMES for c in (
            Column(f"{regime}_s", f"S {regime}-bound", figures.score), Column(f"{regime}_operators", "operators"),
        )),
        Column("without_arithmetic", "without arithmetic"),
    ]  # fmt: skip
    notes = [
        f"median of S_i over the operators judged, those without a correct shape counted as 0; compute-bound from "
        f"{COMPUTE_BOUND:g} FLOP/byte, the median over the operator's shapes; operators without arithmetic in neither",
        *facts.notes,
    ]
    return Table("regimes", "S by regime", columns, rows, notes)


def _intensity(value: float | None) -> str:
    return figures.DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _operators(sets: Sequence[CandidateSet]) -> list[str]:
    return list(dict.fromkeys(name for s in sets for name in s.judged))
