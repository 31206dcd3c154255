"""What one trace holds, what it lacks and what that costs, as a JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from atrex.traces import phases, raw
from atrex.traces.families.rules import load_rules
from atrex.traces.pipeline import LINKS, Analysis

LINKED = ("correlation", "capture", "node", "time")


def summarize(analysis: Analysis, trace_id: str, app: str | None, rank: int | None) -> dict[str, Any]:
    """Counts, shares of exclusive device time, losses and notes of one trace.

    Shares are of all device time, copies and sets included; a trace without device time has none (null).
    """
    meta, device = analysis.trace.meta, analysis.trace.device
    exclusive = analysis.exclusive
    total = float(exclusive.sum())
    families = load_rules().families
    known = analysis.assignments
    operator = np.array([a.operator is not None for a in known], dtype=bool)
    mapped = np.array([families[a.family].mapped for a in known], dtype=bool)

    def share(rows: np.ndarray) -> float | None:
        return float(exclusive[rows].sum()) / total if total else None

    kinds = device["kind"].to_numpy()
    start, dur = device["start"].to_numpy(), device["dur"].to_numpy()
    return {
        "trace": trace_id,
        "app": app,
        "rank": rank,
        "file": analysis.path.name,
        "format": meta.format,
        "dialect": meta.dialect,
        "vendor": meta.vendor or None,
        "framework": analysis.framework,
        "devices": meta.devices,
        "world_size": meta.world_size,
        "base_ns": meta.base_ns,
        "role": role(analysis),
        "records": {name: int((kinds == code).sum()) for code, name in enumerate(raw.DEVICE_KIND_NAMES)},
        "events": meta.counts,
        "launches": len(analysis.linked.launches),
        "span_ns": int((start + dur).max() - start.min()) if len(device) else 0,
        "device_ns": {"exclusive": total, "inclusive": int(dur.sum())},
        "overlapping": analysis.overlapping,
        "shares": {
            "linked": share(np.isin(analysis.joins.link, LINKED)),
            "mapped": share(mapped[analysis.assignment]) if len(known) else None,
            "operators": share(operator[analysis.assignment]) if len(known) else None,
            "phase": share(analysis.phases.phase != phases.NONE),
            "shapes": share(_shaped(analysis)),
        },
        "links": {name: s for name in LINKS if (s := share(analysis.joins.link == name))},
        "phases": {name: s for name in phases.PHASES if (s := share(analysis.phases.phase == name))},
        "phase_sources": {str(n): share(analysis.phases.source == n) for n in np.unique(analysis.phases.source)},
        "graphs": {
            "replays": analysis.joins.replays,
            "joined": analysis.joins.joined,
            "captured": len(analysis.captured),
            "agreement": min(analysis.joins.agreement, default=None),
        },
        "steps": len(analysis.steps),
        "stacks": meta.has_stacks,
        "loss": asdict(meta.loss),
        "notes": meta.notes,
        "extra": meta.extra,
    }


def _shaped(analysis: Analysis) -> np.ndarray:
    """Which records have the operands of their operator."""
    known = np.array([site.dims is not None for site in analysis.sites], dtype=bool)
    site = analysis.joins.site
    return (site >= 0) & known[np.maximum(site, 0)] if len(known) else np.zeros(len(site), dtype=bool)


def role(analysis: Analysis) -> str:
    """`capture` for a trace that was taken while graphs were captured: what ran in it is no serving; else `serving`."""
    return "capture" if analysis.captured and not analysis.joins.replays else "serving"


def lacks(summary: dict[str, Any]) -> list[str]:
    """What the trace lacks and what that costs, a sentence each, with the share of device time concerned."""
    found = []
    links, shares = summary["links"], summary["shares"]
    if not sum(summary["records"].values()):
        return ["no device records: nothing can be said about device time"]
    if not summary["device_ns"]["inclusive"]:
        found.append("every device record lasts 0 ns: the profiler lost the durations, record again")
    if graph := links.get("graph"):
        found.append(
            f"{graph:.1%} of device time is in graph replays without their capture: its operators and shapes are "
            "unknown there, families come from kernel names; import the trace of the capture with it"
        )
    if none := links.get("none"):
        found.append(
            f"{none:.1%} of device time has no launch in the file (before the window, or the host was not traced): "
            "families come from kernel names and order"
        )
    if not shares["shapes"]:
        why = " (record_shapes was off)" if summary["format"] == "kineto" else ""
        found.append(f"no operand dimensions{why}: shapes cannot be mined from it")
    if not summary["stacks"] and summary["format"] == "kineto":
        found.append("no Python frames or modules (with_stack was off): eager chains are told apart by order alone")
    unlabelled = 1 - (shares["phase"] or 0.0)
    if unlabelled > 0.005:
        found.append(
            f"{unlabelled:.1%} of device time has no phase: no step annotation, file name or attention says it"
        )
    if guessed := summary["phase_sources"].get("attention"):
        found.append(f"{guessed:.1%} of device time has its phase from attention kernels alone: no step is annotated")
    if unsure := summary["phase_sources"].get("uncertain"):
        found.append(f"{unsure:.1%} of device time is in steps whose names cannot tell chunked prefill from decode")
    if mixed := summary["phases"].get("mixed"):
        found.append(f"{mixed:.1%} of device time is in steps that mix prefill and decode")
    loss = summary["loss"]
    if loss["truncated"]:
        found.append("the file ends early: what it would have held is lost")
    if loss["lost"]:
        found.append(f"{loss['lost']} events ({loss['lost_bytes']} bytes) could not be read")
    if loss["repaired"]:
        found.append(f"{loss['repaired']} events were malformed and could be mended")
    if summary["overlapping"] and summary["vendor"] == "amd":
        found.append(
            f"{summary['overlapping']} records end after the next one on their stream begins; they are cut there"
        )
    return found
