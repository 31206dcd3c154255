"""Phases of device records: from the step around the launch, else from what is left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from atrex.traces import phases, raw
from atrex.traces.linking import Linked
from atrex.traces.nesting import Stack
from atrex.traces.phases import Step

# Where a phase came from, best first. `stack`: the step's range is open at the launch. `device range`: the range that
# the profiler drew on the device around the record. `previous step`: launched after a step's range on its thread,
# before the next. `file`: the file's name. `attention`: the nearest attention kernel says it (by its name or its
# query length). `given`: the user.
# `uncertain`: a step whose name cannot tell chunked prefill from decode.
SOURCES = ("stack", "uncertain", "device range", "previous step", "file", "attention", "given", "none")


@dataclass
class Phases:
    """Per device record: `phase` and `source` as text, `step`: row of the host annotation or -1, `share`: prefill's
    part of a mixed step's tokens, 1 and 0 for prefill and decode, NaN where unknown.
    """

    phase: np.ndarray
    source: np.ndarray
    step: np.ndarray
    share: np.ndarray


def steps_of(linked: Linked, strings: raw.Strings) -> dict[int, Step]:
    """node row -> what the step's name says, counts filled in from steps around it."""
    nodes = linked.nodes
    named = nodes.with_row_index("row").filter(pl.col("kind") == raw.ANNOTATION).select("row", "name", "parent")
    parsed = {name: phases.parse_step(strings[name]) for name in named["name"].unique().to_list()}
    found: dict[int, Step] = {}
    for row, name, parent in named.iter_rows():  # parents come first: rows are sorted by start
        step = parsed[name]
        if step is not None:
            found[row] = step.filled_from(found[parent]) if parent in found else step
    # An outer range can know counts too: SGLang's step[...] stands inside vLLM-style ranges and the other way round.
    for row, _, parent in reversed(list(named.iter_rows())):
        if row in found and parent in found:
            found[parent] = found[parent].filled_from(found[row])
    return found


def label(
    trace: raw.RawTrace, linked: Linked, steps: Mapping[int, Step], launch_of: np.ndarray, given: str | None = None
) -> Phases:
    """Phases of all device records by annotation, then by device range, previous step and file name.

    `launch_of`: launch row of each record or -1. What is then left is `none`; see `from_attention`.
    """
    n = len(trace.device)
    result = Phases(
        phase=np.full(n, phases.NONE, dtype=object), source=np.full(n, "none", dtype=object),
        step=np.full(n, -1, dtype=np.int64), share=np.full(n, np.nan),
    )  # fmt: skip
    if given is not None:
        _fill(result, np.ones(n, dtype=bool), given, "given")
        return result
    launched = launch_of >= 0
    step_of_launch = linked.launches["step"].to_numpy()
    step = np.where(launched, step_of_launch[np.maximum(launch_of, 0)], -1) if len(step_of_launch) else result.step
    _from_steps(result, step, steps, "stack")
    _from_device_ranges(result, trace)
    if steps and len(linked.launches):
        previous = _previous_steps(linked, steps)
        step = np.where(launched & (result.phase == phases.NONE), previous[np.maximum(launch_of, 0)], -1)
        _from_steps(result, step, steps, "previous step")
    if (stated := phases.phase_of_file(trace.path.name)) is not None:
        _fill(result, result.phase == phases.NONE, stated, "file")
    return result


def _fill(result: Phases, rows: np.ndarray, phase: str, source: str) -> None:
    result.phase[rows] = phase
    result.source[rows] = source
    if (share := Step(phase).prefill_share()) is not None:
        result.share[rows] = share


def _from_steps(result: Phases, step: np.ndarray, steps: Mapping[int, Step], source: str) -> None:
    rows = np.flatnonzero(step >= 0)
    if not rows.size:
        return
    distinct, which = np.unique(step[rows], return_inverse=True)
    known = [steps[row] for row in distinct.tolist()]
    result.step[rows] = step[rows]
    says = np.array([s.phase != phases.NONE for s in known], dtype=bool)[which]
    rows, which = rows[says], which[says]
    result.phase[rows] = np.array([s.phase for s in known], dtype=object)[which]
    result.source[rows] = np.array([source if s.certain else "uncertain" for s in known], dtype=object)[which]
    result.share[rows] = np.array([_nan(s.prefill_share()) for s in known])[which]


def _nan(share: float | None) -> float:
    return np.nan if share is None else share


def _from_device_ranges(result: Phases, trace: raw.RawTrace) -> None:
    ranges = trace.device_annotations
    open_rows = result.phase == phases.NONE
    if not len(ranges) or not open_rows.any():
        return
    parsed = {name: phases.parse_step(trace.strings[name]) for name in ranges["name"].unique().to_list()}
    saying = [name for name, step in parsed.items() if step is not None and step.phase != phases.NONE]
    ranges = ranges.filter(pl.col("name").is_in(saying)).sort("device", "start", "dur", descending=[False, False, True])
    stack = Stack(*(c.to_numpy() for c in (ranges["device"], ranges["start"], ranges["start"] + ranges["dur"])))
    rows = np.flatnonzero(open_rows)
    at = stack.innermost(trace.device["device"].to_numpy()[rows], trace.device["start"].to_numpy()[rows])
    rows, named = rows[at >= 0], ranges["name"].to_numpy()[at[at >= 0]]
    for name in np.unique(named).tolist():
        picked, step = rows[named == name], parsed[name]
        result.phase[picked] = step.phase
        result.source[picked] = "device range"
        result.share[picked] = _nan(step.prefill_share())


def _previous_steps(linked: Linked, steps: Mapping[int, Step]) -> np.ndarray:
    """For each launch, the last step that began before it on its thread; -1 for none."""
    rows = np.array(sorted(steps), dtype=np.int64)
    nodes = linked.nodes
    begun = pl.DataFrame(
        {"thread": nodes["thread"].gather(rows), "start": nodes["start"].gather(rows), "previous": rows}
    ).sort("start")
    joined = linked.launches.select("thread", "start").with_row_index("row").sort("start").join_asof(
        begun, on="start", by="thread", strategy="backward", check_sortedness=False
    ).sort("row")  # fmt: skip
    return joined["previous"].fill_null(-1).to_numpy()


def from_attention(result: Phases, device: pl.DataFrame, hints: np.ndarray) -> None:
    """Give records without a phase that of the nearest hint in time on their device; in place.

    `hints`: per record, prefill, decode or None: what an attention kernel says about the step it is in.
    """
    hinted = np.array([h is not None for h in hints], dtype=bool)
    if not hinted.any():
        return
    where, start = device["device"].to_numpy(), device["start"].to_numpy()
    for on in np.unique(where):
        known = np.flatnonzero(hinted & (where == on))
        asked = np.flatnonzero((where == on) & (result.phase == phases.NONE))
        if not known.size or not asked.size:
            continue
        known = known[np.argsort(start[known], kind="stable")]
        times = start[known]
        right = np.clip(np.searchsorted(times, start[asked]), 0, len(known) - 1)
        left = np.maximum(right - 1, 0)
        nearer_left = np.abs(start[asked] - times[left]) <= np.abs(times[right] - start[asked])
        nearest = known[np.where(nearer_left, left, right)]
        for phase in (phases.PREFILL, phases.DECODE):
            rows = asked[np.array([hints[i] == phase for i in nearest], dtype=bool)]
            mask = np.zeros(len(where), dtype=bool)
            mask[rows] = True
            _fill(result, mask, phase, "attention")


# Where the query length stands among the operand dimensions of PyTorch's attention operators.
_QUERY_AXIS = {
    "aten::scaled_dot_product_attention": -2, "aten::_scaled_dot_product_flash_attention": -2,
    "aten::_scaled_dot_product_efficient_attention": -2, "aten::_scaled_dot_product_cudnn_attention": -2,
    "aten::_scaled_dot_product_attention_math": -2, "aten::_cudnn_attention_forward": -2,
    "aten::_flash_attention_forward": 1, "aten::_efficient_attention_forward": 1,
    "aten::_scaled_dot_product_fused_attention_overrideable": -2,
}  # fmt: skip


def attention_hint(op: str | None, dims: str | None) -> str | None:
    """The phase that an attention operator's query length says: one token is decode, more are prefill."""
    axis = _QUERY_AXIS.get(op or "")
    if axis is None or not dims:
        return None
    try:
        query = json.loads(dims)[0]
        length = query[axis]
    except (ValueError, IndexError, TypeError):
        return None
    if not isinstance(length, int):
        return None
    return phases.DECODE if length == 1 else phases.PREFILL
