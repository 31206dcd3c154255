"""Failing units by category and set (the paper's Tables 7 and 10)."""

from __future__ import annotations

from collections.abc import Sequence

from atrex.report import figures
from atrex.report.study.sets import CandidateSet
from atrex.report.study.table import Column, Table
from atrex.scoring.failures import MAPPING_NOTE, failures


def breakdown(sets: Sequence[CandidateSet]) -> Table:
    """A row a category: its units in every set, in all of them, and their share of all failing units."""
    counts = {s.name: failures(s.records) for s in sets}
    every = failures([r for s in sets for r in s.records])
    rows = [
        {
            "stage": str(total.row.stage),
            "category": total.row.title,
            **{f"units_{name}": found[i].count for name, found in counts.items()},
            "units": total.count,
            "share": total.share,
        }
        for i, total in enumerate(every)
    ]
    columns = [
        Column("stage", "stage"),
        Column("category", "category"),
        *(Column(f"units_{name}", name, data=False) for name in counts),
        Column("units", "all", shown=len(counts) > 1),
        Column("share", "share", figures.percent),
    ]
    notes = [f"{sum(t.count for t in every)} failing units, not operator-balanced; {MAPPING_NOTE}"]
    return Table("failures", "Failing units", columns, rows, notes, left=2)


def by_set(sets: Sequence[CandidateSet]) -> Table:
    """The same as a row a set and category."""
    rows = [
        {"set": s.name, "stage": str(c.row.stage), "category": c.row.title, "units": c.count, "share": c.share}
        for s in sets
        for c in failures(s.records)
    ]
    columns = [Column(key, key) for key in ("set", "stage", "category", "units", "share")]
    return Table("failures_by_set", "Failing units by set", columns, rows, shown=False)
