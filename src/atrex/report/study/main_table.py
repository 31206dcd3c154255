"""The main table (the paper's Table 4), and fully correct operators against DSL-dominant ones (its Figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from atrex.report import figures
from atrex.report.study.sets import CandidateSet
from atrex.report.study.table import Column, Table, text
from atrex.scoring.records import Verdict

_SHORTCUTS = get_args(get_args(Verdict.model_fields["shortcut"].annotation)[0])


def main_table(sets: Sequence[CandidateSet]) -> Table:
    """A row a set: rates and S of `atrex.scoring.aggregate.Summary`, ratios to every baseline that any set has."""
    names = sorted({name for s in sets for name in s.summary.baselines})
    rows = []
    for s in sets:
        m, made = s.summary, s.generation
        row = {
            "set": s.name,
            "agent": made.about.agent if made else None,
            "model": made.about.model if made else None,
            "sample": s.sample,
            "dsl": ", ".join(sorted({r.dsl for r in s.records})),
            "chip": s.records[0].chip,
            "operators_judged": m.operators_run,
            "operators": m.operators,
            "units_judged": sum(map(len, s.judged.values())),
            "units": m.shapes,
            "compile_rate": m.compile_rate,
            "correctness": m.correctness,
            "adoption": m.adoption,
            "adoption_operators": m.adoption_operators,
            "s_agg": m.s_agg,
            "s_agg_strict": m.s_agg_strict,
            "s_agg_attainable": m.s_agg_attainable,
            "s": m.s_median,
            "s_operators": m.s_median_operators,
            "errors": sum(m.errors.values()),
        }
        for name in names:
            found = m.baselines.get(name)
            row[f"vs_{name}"] = found.ratio if found else None
            row[f"vs_{name}_operators"] = found.operators if found else 0
        rows.append(row)
    columns = [
        Column("set", "candidate set"),
        *(Column(key, key, shown=False) for key in ("agent", "model", "sample", "dsl", "chip")),
        Column("operators_judged", "operators"),
        Column("operators", "of"),
        Column("units_judged", "units judged", shown=False),
        Column("units", "units", shown=False),
        Column("compile_rate", "compiled", figures.percent),
        Column("correctness", "correct", figures.percent),
        Column("adoption", "DSL share", figures.percent),
        Column("adoption_operators", "DSL share over", shown=False),
        Column("s_agg", "S_agg", figures.score),
        Column("s_agg_strict", "strict", figures.score),
        Column("s_agg_attainable", "attainable", figures.score),
        Column("s", "S", figures.score),
        Column("s_operators", "S over", shown=False),
        *(c for name in names for c in (
            Column(f"vs_{name}", f"vs {name}", figures.ratio),
            Column(f"vs_{name}_operators", f"vs {name} over", shown=False),
        )),
        Column("errors", "errors", shown=any(r["errors"] for r in rows)),
    ]  # fmt: skip
    notes = [
        "operator-balanced; compiled, correct and S_agg are over all operators of the suite, what was not run counts "
        "0; DSL share, S and ratios are over the operators where they are defined"
    ]
    return Table("main", "Main results", columns, rows, notes)


def illusion(sets: Sequence[CandidateSet]) -> Table:
    """A row a set: fully correct operators, DSL-dominant ones, both or one without the other, and the shortcuts."""
    rows = []
    for s in sets:
        m, scores = s.summary, [o for name, o in s.score.operators.items() if name in s.shapes]
        rows.append({
            "set": s.name,
            "fully_correct": m.fully_correct,
            "dominant": m.dominant,
            "gap": m.gap,
            "both": sum(o.fully_correct and o.dominant for o in scores),
            "correct_not_dominant": sum(o.fully_correct and o.adoption is not None and not o.dominant for o in scores),
            "correct_unmeasured": sum(o.fully_correct and o.adoption is None for o in scores),
            "correctness": m.correctness,
            "adoption": m.adoption,
            **{f"shortcut_{name}": m.shortcuts.get(name, 0) for name in _SHORTCUTS},
        })  # fmt: skip
    columns = [
        Column("set", "candidate set"),
        Column("fully_correct", "fully correct"),
        Column("dominant", "DSL-dominant"),
        Column("gap", "gap", lambda n: f"{n:+d}"),
        Column("both", "both"),
        Column("correct_not_dominant", "correct, not dominant"),
        Column("correct_unmeasured", "correct, share unknown", shown=any(r["correct_unmeasured"] for r in rows)),
        Column("correctness", "correct", figures.percent),
        Column("adoption", "DSL share", figures.percent),
        *(Column(f"shortcut_{name}", f"{name} units", text) for name in _SHORTCUTS),
    ]
    notes = ["counts are of operators; dominant is a mean share over 50 %; the gap is fully correct less dominant"]
    return Table("illusion", "Correctness against DSL dominance", columns, rows, notes)
