"""A data set of traces as data: device time by what, what is unmapped, which shapes ran, what weights follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from atrex.errors import UserError
from atrex.traces.dataset import Dataset
from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.headroom import fleet_of
from atrex.traces.fleet.report import weights_document
from atrex.traces.fleet.served import moved_notes, served
from atrex.traces.fleet.spec import Fleet
from atrex.traces.fleet.weights import device_time, importance
from atrex.traces.mining.mine import Mined, Unmined, mine
from atrex.traces.phases import PHASES
from atrex.traces.report import top_document, unmapped_document
from atrex.traces.summary import lacks

MOST = 500  # rows of kernels, unmapped kernels and shapes of an operator; the rest is one row that says how many


def trace_document(data: Dataset, jobs: int | None = 1) -> dict[str, Any]:
    """All that the pages of a data set show, as one JSON document. Times are nanoseconds of exclusive device time.

    An application is what a trace was imported for, "unnamed" without. Weights take the applications at their device
    time, for a data set knows no card-hours. `jobs`: processes that read shapes, None for one a core. A set that holds
    graph captures alone has no device time, and null where it would stand.
    """
    document: dict[str, Any] = {
        "schema": 1,
        "path": str(data.path),
        "traces": [{**summary, "lacks": lacks(summary)} for summary in data.summaries.values()],
        "time": None, "by": {}, "applications": [], "unmapped": None, "shapes": [], "unmined": [], "weights": None,
        "notes": [],
    }  # fmt: skip
    try:
        fleet, gathered = fleet_of(data)
        tops = {by: top_document(data, by) for by in ("family", "operator", "kernel", "phase")}
    except UserError as error:
        return document | {"notes": [str(error)]}
    whole = tops["family"]
    shared = ("total_ns", "mapped", "operators", "mixed_ns", "captures")
    document["time"] = {"kind": whole["time"], **{key: whole[key] for key in shared}}
    document["by"] = {by: _most(top["rows"], by) for by, top in tops.items()}
    document["applications"] = _applications(data, gathered)
    unmapped = unmapped_document(data)
    rows = unmapped["rows"]
    document["unmapped"] = {"share": unmapped["unmapped"], "total": len(rows), "rows": rows[:MOST]}
    mined, unmined = mine(fleet, gathered, jobs)
    document["shapes"], document["unmined"] = shapes(mined), _unmined(unmined)
    try:
        document["weights"] = _weights(fleet, gathered, mined, unmined)
    except UserError as error:
        document["notes"].append(f"no weights: {error}")
    return document


def shapes(mined: Sequence[Mined]) -> list[dict[str, Any]]:
    """The shapes that each operator ran at, operators by device time and shapes by it within.

    `share` is of the operator's calls of a known shape. `dims`: name -> value and source (traced, configured, typical).
    """
    operators: dict[str, dict[str, dict[str, Any]]] = {}
    for each in mined:
        known = operators.setdefault(each.operator, {})
        row = known.setdefault(each.shape, {
            "init_kwargs": each.init_kwargs, "input_kwargs": each.input_kwargs, "calls": 0, "ns": 0.0,
            "phases": {}, "applications": {}, "chips": [],
            "dims": {name: {"value": dim.value, "source": dim.source} for name, dim in each.dims.items()},
        })  # fmt: skip
        row["calls"] += len(each.ns)
        row["ns"] += each.total_ns
        for key, value in (("phases", each.phase), ("applications", each.application)):
            row[key][value] = row[key].get(value, 0.0) + each.total_ns
        row["chips"] = sorted({*row["chips"], *([each.chip] if each.chip else [])})
    found = []
    for operator, rows in operators.items():
        total = sum(row["ns"] for row in rows.values())
        ordered = sorted(rows.values(), key=lambda row: -row["ns"])
        listed = [{"ns": row["ns"], "share": row["ns"] / total if total else 0.0, **row} for row in ordered]
        kept, calls = listed[:MOST], sum(row["calls"] for row in listed)
        found.append({"operator": operator, "ns": total, "calls": calls, "shapes": len(listed), "rows": kept})
    return sorted(found, key=lambda entry: (-entry["ns"], entry["operator"]))


def _unmined(unmined: Sequence[Unmined]) -> list[dict[str, Any]]:
    """Device time whose shape could not be told, by operator and reason."""
    sums: dict[tuple[str, str], float] = {}
    for each in unmined:
        sums[each.operator, each.reason] = sums.get((each.operator, each.reason), 0.0) + each.ns
    rows = [{"operator": operator, "reason": reason, "ns": ns} for (operator, reason), ns in sums.items()]
    return sorted(rows, key=lambda row: -row["ns"])


def _weights(
    fleet: Fleet, gathered: Gathered, mined: Sequence[Mined], unmined: Sequence[Unmined]
) -> dict[str, Any]:  # fmt: skip
    hours = fleet.card_hours()
    time = device_time(gathered.data, {trace: gathered.of[trace][0] for trace in gathered.serving()})
    moved = served(time, mined, unmined, "split")
    found = importance(moved, hours)
    found.notes.extend(moved_notes(time, moved, hours))
    return weights_document(found)


def _applications(data: Dataset, gathered: Gathered) -> list[dict[str, Any]]:
    """Device time of each application by phase and by family, heaviest first."""
    names = {trace: gathered.of[trace][0] for trace in gathered.serving()}
    joined = pl.LazyFrame({"trace": list(names), "application": list(names.values())})
    sums = (
        data.table("kernels", list(names)).join(joined, on="trace")
        .group_by("application", "phase", "family")
        .agg(pl.col("exclusive_ns").sum().alias("ns"), pl.len().alias("calls"))
        .collect()
    )  # fmt: skip
    total = float(sums["ns"].sum()) or 1.0
    found = []
    for (app,), rows in sums.group_by("application"):
        ns = float(rows["ns"].sum())
        found.append({
            "application": app, "ns": ns, "share": ns / total, "calls": int(rows["calls"].sum()),
            "traces": sorted(trace for trace, name in names.items() if name == app),
            "phases": _ordered(rows, "phase", PHASES), "families": _ordered(rows, "family"),
        })  # fmt: skip
    return sorted(found, key=lambda row: (-row["ns"], row["application"]))


def _ordered(rows: pl.DataFrame, column: str, order: Sequence[str] = ()) -> Mapping[str, float]:
    sums = dict(rows.group_by(column).agg(pl.col("ns").sum()).iter_rows())
    names = [name for name in order if name in sums] or sorted(sums, key=lambda name: (-sums[name], name))
    return {name: float(sums[name]) for name in names}


def _most(rows: list[dict[str, Any]], by: str) -> dict[str, Any]:
    """The heaviest rows, and how many there are with how much time in the rest."""
    rest = rows[MOST:]
    return {"total": len(rows), "rest_share": sum(row["share"] for row in rest), "key": by, "rows": rows[:MOST]}
