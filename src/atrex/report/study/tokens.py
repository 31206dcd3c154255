"""What generation took against what it gave (the paper's Table 6 and Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence

from atrex.report import figures
from atrex.report.study.sets import CandidateSet
from atrex.report.study.table import Column, Table


def tokens(sets: Sequence[CandidateSet]) -> Table:
    """A row a set that `atrex generate` made.

    Output tokens are all that the agent emitted on the judged operators, from the first attempt to the end of the
    session that left the candidate, reasoning included. `told` of `problems` have a usage; the tokens per correct
    operator are only given where all have.
    """
    rows = []
    for s in sets:
        if s.generation is None:
            continue
        made = [s.generation.records.get(name) for name in s.judged]
        told = [g for g in made if g is not None and g.usage is not None]
        output = sum(g.usage.output for g in told) if told else None
        correct = s.summary.fully_correct
        complete = len(told) == len(made)
        costs = [g.cost_usd for g in made if g is not None]
        rows.append({
            "set": s.name,
            "output_tokens": output,
            "input_tokens": sum(g.usage.input for g in told) if told else None,
            "told": len(told),
            "problems": len(made),
            "fully_correct": correct,
            "tokens_per_correct": output / correct if told and complete and correct else None,
            "cost_usd": sum(costs) if len(costs) == len(made) and None not in costs else None,
            "s_agg": s.summary.s_agg,
        })  # fmt: skip
    columns = [
        Column("set", "candidate set"),
        Column("output_tokens", "output tokens"),
        Column("input_tokens", "input tokens"),
        Column("told", "told for"),
        Column("problems", "of"),
        Column("fully_correct", "fully correct"),
        Column("tokens_per_correct", "per correct operator", lambda v: figures.DASH if v is None else f"{v:,.0f}"),
        Column("cost_usd", "cost", lambda v: figures.DASH if v is None else f"${v:,.2f}"),
        Column("s_agg", "S_agg", figures.score),
    ]
    notes = ["output tokens are all that the agent emitted until it ended, with reasoning and every attempt"]
    return Table("tokens", "Tokens against quality", columns, rows, notes)
