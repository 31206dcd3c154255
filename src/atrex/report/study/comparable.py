"""Which candidate sets may stand in one table: those that were asked and judged under the same conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atrex.generate.records import COMPARED
from atrex.hardware.chip import CPU
from atrex.report.study.sets import CandidateSet

_TITLES = {
    "suite_hash": "suite hash", "dsl": "DSL", "chip": "device", "cpu": "device",
    "asked_prompt_sha256": "prompt hash", "asked_policy": "tool policy",
}  # fmt: skip


def conditions(s: CandidateSet) -> dict[str, Any]:
    """What must agree: suite, DSL and device of the judge, and everything but agent and model of the generation.

    A set that no agent was asked for has none of the latter: it is comparable with its like alone.
    """
    run = s.run.run
    found = {
        "suite_hash": run.get("suite_hash"),
        "dsl": ", ".join(sorted({r.dsl for r in s.records})),
        "chip": s.records[0].chip,
        # All CPUs are one chip id; the name tells them apart.
        "cpu": run.get("device_name") if s.records[0].chip == CPU else None,
    }
    asked = s.generation.about if s.generation else None
    return found | {f"asked_{name}": getattr(asked, name) if asked else None for name in COMPARED}


def groups(sets: Sequence[CandidateSet]) -> list[list[CandidateSet]]:
    """The sets in groups of equal conditions, by the order of first appearance."""
    found: dict[tuple, list[CandidateSet]] = {}
    for s in sets:
        found.setdefault(tuple(conditions(s).values()), []).append(s)
    return list(found.values())


def differences(grouped: Sequence[Sequence[CandidateSet]]) -> list[str]:
    """Why the groups after the first are not compared with the first, a line each. Empty for one group."""
    if len(grouped) < 2:
        return []
    first = grouped[0][0]
    return [
        f"{', '.join(s.name for s in group)} not compared with {first.name}: {'; '.join(differ(first, group[0]))}"
        for group in grouped[1:]
    ]


def differ(a: CandidateSet, b: CandidateSet, fields: Sequence[str] | None = None) -> list[str]:
    """The conditions in which two sets differ, with both values; only `fields` where some are given."""
    mine, other = conditions(a), conditions(b)
    return [
        f"{_TITLES.get(name) or name.replace('asked_', 'generation: ').replace('_', ' ')} "
        f"{_short(mine[name])} and {_short(other[name])}"
        for name in fields or mine
        if mine[name] != other[name]
    ]


def coverage_notes(group: Sequence[CandidateSet]) -> list[str]:
    """What sets of one group do not have in common although their conditions agree; what their models may have seen."""
    notes = []
    if any(s.judged != group[0].judged for s in group):
        notes.append("these sets were judged on different units: what a set was not run on counts 0 in its S_agg")
    if len(group) > 1 and all(s.run.run.get("suite_hash") is None for s in group):
        notes.append("run.json names no suite hash: that the sets are of one suite is not known")
    return notes + [f"{s.name} may have seen: {s.generation.about.seen}" for s in group if _has_note(s)]


def _has_note(s: CandidateSet) -> bool:
    return s.generation is not None and bool(s.generation.about.seen)


def _short(value: Any) -> str:
    text = "none recorded" if value is None else str(value)
    return text[:12] if len(text) == 64 else text
