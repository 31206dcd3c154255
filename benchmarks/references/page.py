"""docs/references.md, from the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.references.outcome import AGREES, DIFFERS, FAILED, NOT_RUN
from benchmarks.references.record import meaning
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
    python -m benchmarks.references --page                # writes this page from the records

Records, an operator each, with versions, device, cases and deviations: [results/references](../results/references).
What is not installed is recorded as not run, with how to install it, and counts as nothing. Autotuned kernels run with
their first configuration. Modules of vLLM and SGLang are loaded one by one, unchanged, without what starts a server.
"""

MEANING = "An entry: cases that agree of cases run, and the largest error in these as a share of its bound."


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
    old = sorted(
        n for n, p in problems.items() if any(d["reference"] != meaning(p) for d in _found(records[n]).values())
    )
    if old:
        lines += ["", "Recorded with an older reference: " + ", ".join(f"`{name}`" for name in old) + "."]
    gpu_only = [f"`{name}` ({why})" for name, why in WHY_NO_CPU.items()]
    lines += ["", "Checked on a GPU only: " + "; ".join(gpu_only) + "."]
    return "\n".join(lines) + "\n"


def gpu_only() -> list[str]:
    """The operators that no check runs on the CPU."""
    covered = {check.operator for check in all_checks() if "cpu" in check.devices}
    return [name for name in load_suite().problems if name not in covered]


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _found(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return record.get("devices", {})


def _devices(records: dict[str, dict]) -> list[str]:
    seen = {}
    for record in records.values():
        for kind, found in _found(record).items():
            versions = found["versions"]
            driver = f", driver {versions['driver']}" if "driver" in versions else ""
            seen[kind] = (
                f"- {'GPU' if kind == 'cuda' else 'CPU'}: {found['device']}{driver}, torch {versions['torch']}, "
                f"triton {versions['triton']}, {found['date'][:10]}"
            )
    return [seen[kind] for kind in sorted(seen)]


def _entries(record: dict[str, Any], kind: str) -> list[str]:
    """One line an implementation, its devices together."""
    by_name: dict[tuple, list[str]] = {}
    for device, found in _found(record).items():
        for check in found["checks"]:
            if check["kind"] != kind or check["verdict"] == NOT_RUN:
                continue
            ran = [case for case in check["cases"] if case["verdict"] != NOT_RUN]
            agree = [case for case in ran if case["verdict"] == AGREES]
            worst = max((case["worst"] or 0.0 for case in agree), default=0.0)
            mark = "" if check["verdict"] == AGREES else f" **{check['verdict']}**"
            said = f"{'GPU' if device == 'cuda' else 'CPU'} {len(agree)}/{len(ran)}, {worst:.2g}{mark}"
            by_name.setdefault((check["implementation"], check["library"], check["version"]), []).append(said)
    return [f"{name} ({library} {version}): {'; '.join(said)}" for (name, library, version), said in by_name.items()]


def _without(records: dict[str, dict], problems: dict) -> list[str]:
    missing = []
    for name in problems:
        checks = [c for found in _found(records[name]).values() for c in found["checks"]]
        if not any(c["kind"] == PRODUCTION and c["verdict"] == AGREES for c in checks):
            missing.append(name)
    return [f"- `{name}`" for name in missing] or ["None."]


def _differing(records: dict[str, dict]) -> list[str]:
    lines = []
    for name, record in records.items():
        for device, found in _found(record).items():
            for check in found["checks"]:
                for case in check.get("cases", []):
                    if case["verdict"] not in (DIFFERS, FAILED):
                        continue
                    why = case.get("known") or case.get("reason") or f"{case.get('output')}, {case.get('detail')}"
                    where = "GPU" if device == "cuda" else "CPU"
                    lines.append(f"- `{name}`, {check['implementation']}, {where}, case {case['case']}: {why}")
    return lines or ["Nowhere."]
