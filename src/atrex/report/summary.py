"""The suite-level figures in the terminal: lines for one candidate set, columns for several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atrex.report import figures
from atrex.scoring.aggregate import Summary
from atrex.scoring.baselines import PRODUCTION
from atrex.scoring.readiness import PROPERTIES

COMPARED_AT_ONCE = 4


class Row(NamedTuple):
    """A figure: its name, how it prints, and what it is taken over."""

    name: str
    value: Callable[[Summary], str]
    over: str = ""


def print_summary(summary: Summary, console: Console) -> None:
    """Print the figures of one candidate set, each with what it is taken over."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", style="bold")
    grid.add_column(overflow="fold", justify="right")
    grid.add_column(overflow="fold")
    for row in summary_rows([summary]):
        grid.add_row(Text(row.name), Text(row.value(summary)), Text(row.over))
    console.print(grid)


def print_comparison(summaries: Mapping[str, Summary], console: Console) -> None:
    """Print the figures of several candidate sets side by side, a few columns at a time."""
    labels = list(summaries)
    rows = summary_rows(summaries.values())
    for start in range(0, len(labels), COMPARED_AT_ONCE):
        shown = labels[start : start + COMPARED_AT_ONCE]
        table = Table(title=Text("Candidates"), title_justify="left", header_style="bold")
        table.add_column("", overflow="fold", style="bold")
        for label in shown:
            table.add_column(Text(label), justify="right", overflow="fold")
        for row in rows:
            table.add_row(Text(row.name), *(Text(row.value(summaries[label])) for label in shown))
        console.print(table)
    total = next(iter(summaries.values())).operators
    console.print(Text(
        f"S_agg, compiled and correct are over all {total} operators, what was not run counts 0; DSL share, S and the "
        "ratios are over the operators where they are defined"
    ))


def summary_rows(every: Collection[Summary]) -> list[Row]:
    """The figures to print; one that no candidate set has measured is left out where it is an optional one."""
    total = next(iter(every)).operators
    over_all = f"over all {total} operators, what was not run counts 0"
    rows = [
        Row("S_agg", lambda s: figures.score(s.s_agg), over_all),
        Row("  strict", lambda s: figures.score(s.s_agg_strict),
            "a failed or absent shape counts 0 in its operator's median"),
        Row("  attainable", lambda s: figures.score(s.s_agg_attainable),
            "against the larger of roofline and launch floor"),
    ]
    if any(s.s_agg_calibrated is not None for s in every):
        rows.append(Row("  calibrated", lambda s: figures.score(s.s_agg_calibrated),
                        "against the peaks measured on this device"))
    if any(s.s_agg_published_bound is not None for s in every):
        rows.append(Row("  published bound", lambda s: figures.score(s.s_agg_published_bound),
                        "under equation 1 with the published W and Q"))
    ruled = any(s.published_unknown < s.shapes_run for s in every)
    rows += [
        Row("  inside coverage", lambda s: figures.score(s.s_agg_inside), "S_agg over the weight that was run"),
        Row("coverage", lambda s: figures.percent(s.coverage), "of the weight is in the operators that were run"),
        Row("compiled", lambda s: figures.percent(s.compile_rate), over_all),
        Row("  inside", lambda s: figures.percent(s.compile_rate_inside), "over what was run"),
        Row("correct", lambda s: figures.percent(s.correctness), over_all),
        Row("  inside", lambda s: figures.percent(s.correctness_inside), "over what was run"),
        *([Row("  published rule", _published, "atol 1e-2, rtol 5e-2 on five seeds, not ours")] if ruled else []),
        Row("DSL share", lambda s: _of(figures.percent(s.adoption), s.adoption_operators, s),
            "mean over the operators where it was measured"),
        Row("dominant", lambda s: f"{s.dominant} of {s.operators}", "operators with a mean DSL share over 50 %"),
        Row("  shortcuts", lambda s: figures.counts(s.shortcuts), "correct units under half, by what took the rest"),
        Row("fully correct", lambda s: f"{s.fully_correct} of {s.operators}", "operators with every shape correct"),
        Row("  gap", lambda s: f"{s.gap:+d}", "fully correct less dominant"),
        Row("S", lambda s: _of(figures.score(s.s_median), s.s_median_operators, s),
            "unweighted median of S_i over the operators where it is defined"),
    ]
    rows += [
        Row(f"vs {name}", lambda s, name=name: _ratio(s, name), _compared(name, every))
        for name in sorted({name for s in every for name in s.baselines})
    ]
    if any(s.held_out for s in every):
        rows.append(Row("generalizes", lambda s: f"{s.generalizes} of {s.held_out}" if s.held_out else figures.DASH,
                        "held-out shapes correct, in no other figure"))
    rows += [
        Row(f"ready: {name.replace('_', ' ')}", lambda s, name=name: figures.shown(s.readiness.get(name)), meaning)
        for name, meaning in PROPERTIES.items()
        if any(name in s.readiness for s in every)
    ]
    rows += [
        Row("units run", lambda s: f"{s.shapes_run} of {s.shapes}", "published shapes"),
        Row("  failed", lambda s: str(s.failed)),
        Row("  in error", lambda s: str(sum(s.errors.values())), "not shown to be the candidate's fault"),
    ]
    if any(s.skipped for s in every):
        rows.append(Row("  skipped", lambda s: str(s.skipped)))
    return rows


def _published(s: Summary) -> str:
    unknown = f" ({s.published_unknown} unknown)" if s.published_unknown else ""
    return figures.percent(s.correctness_published) + unknown


def _of(text: str, n: int, s: Summary) -> str:
    return f"{text} ({n} of {s.operators})"


def _ratio(s: Summary, name: str) -> str:
    found = s.baselines.get(name)
    return _of(figures.ratio(found.ratio), found.operators, s) if found else figures.DASH


def _compared(name: str, every: Collection[Summary]) -> str:
    """What a ratio is, and whose the production times are: one line for all candidate sets, as runs share them."""
    meaning = "median of operator medians, over 1 is faster"
    sources = {source: n for s in every for source, n in s.production.items()} if name == PRODUCTION else {}
    named = ", ".join(f"{source} ({n} operator{'s' * (n != 1)})" for source, n in sources.items())
    return f"{meaning}; {named}" if named else meaning
