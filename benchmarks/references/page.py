"""docs/references.md, from the records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.references.outcome import AGREES, DIFFERS, FAILED, NOT_RUN
from benchmarks.references.record import meaning, measured, outdated
from benchmarks.references.registry import KINDS, PRODUCTION, all_checks

from atrex.problems.load import load_suite

PATH = Path(__file__).resolve().parents[2] / "docs" / "references.md"

WHY_NO_CPU = {
    "moe_align_block_size": "its padded layout exists in GPU kernels only; no library writes it in PyTorch",
}

INTRODUCTION = """\
# The references, held against implementations by others

Every operator's `reference.py` decides what is right, so each is checked against code that this project did not write:
the kernels that serve models in production, other kernels, and PyTorch as its own functions and other libraries write
it. The other implementation takes the place of a candidate: inputs as in an evaluation, the same comparison
([decision 0001](decisions/0001-comparison.md)), on the smallest published shapes, one shape of each branch and every
corner case.

    python -m benchmarks.references --device cpu          # and --device cuda:0
    python -m benchmarks.references --merge DIR           # adds records that another machine made
    python -m benchmarks.references --page                # writes this page from the records

Records, an operator each, with versions, device, cases and deviations: [results/references](../results/references).
What is not installed is recorded as not run, with how to install it, and counts as nothing. Autotuned kernels run with
their first configuration. Modules of vLLM and SGLang are loaded one by one, unchanged, without what starts a server.
"""

MEANING = """\
An entry: cases that agree of cases run, and the largest error in those that agree as a share of its bound. A known
difference has its reason [below](#where-an-implementation-differs) and does not count; what the entry says of an
implementation rests on its other cases."""


def text(folder: Path) -> str:
    """The page. An entry says how many cases agree, of how many, and the worst error over its bound among these."""
    problems = load_suite().problems
    records = {name: _read(folder / f"{name}.json") for name in problems}
    lines = [INTRODUCTION, *_devices(records), "", "## By operator", "", MEANING, ""]
    lines += ["| operator | production kernel | other kernel | PyTorch |", "|---|---|---|---|"]
    for name in problems:
        cells = ["<br>".join(_entries(records[name], kind)) or "-" for kind in KINDS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += ["", "## Without a check by a production kernel", "", *_without(records, problems)]
    lines += ["", "## Where an implementation differs", "", *_differing(records)]
    lines += ["", "## Not run yet", "", *_never(records)]
    old = [
        name
        for name, problem in problems.items()
        if any(measured(found, result)["reference"] != meaning(problem) for _, found, result in _ran(records[name]))
    ]
    if old:
        lines += ["", "Recorded with an older reference: " + ", ".join(f"`{name}`" for name in sorted(old)) + "."]
    gpu_only = [f"`{name}` ({why})" for name, why in WHY_NO_CPU.items()]
    lines += ["", "Checked on a GPU only: " + "; ".join(gpu_only) + "."]
    return "\n".join(lines) + "\n"


def gpu_only() -> list[str]:
    """The operators that no check runs on the CPU."""
    covered = {check.operator for check in all_checks() if "cpu" in check.devices}
    return [name for name in load_suite().problems if name not in covered]


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _ran(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """GPU or CPU, the device's entry and a result, for each result that ran."""
    for kind, found in record.get("devices", {}).items():
        for result in found["checks"]:
            if result["verdict"] != NOT_RUN:
                yield ("GPU" if kind == "cuda" else "CPU"), found, result


def _devices(records: dict[str, dict]) -> list[str]:
    days: dict[str, list[str]] = {}
    for record in records.values():
        for place, found, result in _ran(record):
            where = measured(found, result)
            versions = where["versions"]
            driver = f", driver {versions['driver']}" if "driver" in versions else ""
            said = f"- {place}: {where['device']}{driver}, torch {versions['torch']}, triton {versions['triton']}"
            days.setdefault(said, []).append(where["date"][:10])
    return [f"{said}, {' to '.join(sorted({min(days[said]), max(days[said])}))}" for said in sorted(days)]


def _entries(record: dict[str, Any], kind: str) -> list[str]:
    """One line an implementation, its devices together."""
    by_name: dict[tuple, list[str]] = {}
    for place, _, result in _ran(record):
        if result["kind"] == kind:
            name = (result["implementation"], result["library"], result["version"])
            by_name.setdefault(name, []).append(f"{place} {_said(result)}")
    return [f"{name} ({library} {version}): {'; '.join(said)}" for (name, library, version), said in by_name.items()]


def _said(result: dict[str, Any]) -> str:
    """How many cases agree of those that ran, and the worst among these."""
    if outdated(result):
        return "**to be run again**, with a mended adapter"
    ran = [case for case in result["cases"] if case["verdict"] != NOT_RUN]
    agree = [case for case in ran if case["verdict"] == AGREES]
    known = sum("known" in case for case in ran)
    worst = max((case["worst"] or 0.0 for case in agree), default=0.0)
    aside = f" ({known} known)" if known else ""
    mark = "" if result["verdict"] == AGREES else f" **{result['verdict']}**"
    return f"{len(agree)}/{len(ran)}{aside}, {worst:.2g}{mark}"


def _without(records: dict[str, dict], problems: dict) -> list[str]:
    missing = []
    for name in problems:
        sound = [result for _, _, result in _ran(records[name]) if result["verdict"] == AGREES and not outdated(result)]
        if not any(result["kind"] == PRODUCTION for result in sound):
            missing.append(name)
    return [f"- `{name}`" for name in missing] or ["None."]


def _differing(records: dict[str, dict]) -> list[str]:
    """One line for all cases of a result with one reason."""
    lines = []
    for name, record in records.items():
        for place, _, result in _ran(record):
            if outdated(result):
                continue
            by_reason: dict[str, list[str]] = {}
            for case in result["cases"]:
                if case["verdict"] in (DIFFERS, FAILED):
                    why = case.get("known") or case.get("reason") or f"{case.get('output')}, {case.get('detail')}"
                    mark = "" if "known" in case else " (not explained)"
                    by_reason.setdefault(why + mark, []).append(case["case"])
            for why, cases in by_reason.items():
                count = "case" if len(cases) == 1 else "cases"
                lines.append(f"- `{name}`, {result['implementation']}, {place}, {count} {', '.join(cases)}: {why}.")
    return lines or ["Nowhere."]


def _never(records: dict[str, dict]) -> list[str]:
    """The checks without a result, or with one of an older adapter only, by library."""
    ran = {
        (name, result["implementation"], result["library"])
        for name, record in records.items()
        for _, _, result in _ran(record)
        if not outdated(result)
    }
    missing: dict[str, list[str]] = {}
    for check in all_checks():
        if (check.operator, check.name, check.library) not in ran:
            missing.setdefault(check.library, []).append(f"{check.name} (`{check.operator}`)")
    return [f"- {library}: {'; '.join(names)}" for library, names in missing.items()] or ["Nothing."]
