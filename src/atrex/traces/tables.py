"""The tables of a trace data set, built from an analysis.

`kernels`: a row a device record (kernel, memcpy, memset). `launches`: the calls that started them. `host_ops`:
operators and modules that stand around a launch. `annotations`: ranges that engines and users drew, on
the host and on the device. `contexts`: the distinct chains of names around launches. Rows point at each other by
`id`, within one trace; null is unknown. Times are nanoseconds on the trace's clock, `base_ns` of its summary is the
wall clock of its zero where the file says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from atrex.traces import raw
from atrex.traces.linking import kept_ranges, table_ids
from atrex.traces.pipeline import Analysis, short_name


def builders(
    analysis: Analysis, trace_id: str, app: str | None, rank: int | None
) -> dict[str, Callable[[], pl.DataFrame]]:
    """A function for each table of one trace. `trace_id` is a column of each, `app` and `rank` of `kernels`."""
    kept = table_ids(analysis.linked, analysis.trace.strings)
    made: dict[str, Callable[[], pl.DataFrame]] = {
        "host_ops": lambda: _host_ops(analysis, kept),
        "kernels": lambda: _kernels(analysis, kept, app, rank),
        "launches": lambda: _launches(analysis, kept),
        "annotations": lambda: _annotations(analysis, kept),
        "contexts": lambda: _contexts(analysis),
    }

    def named(build: Callable[[], pl.DataFrame]) -> Callable[[], pl.DataFrame]:
        return lambda: build().select(pl.lit(trace_id, dtype=pl.String).alias("trace"), pl.all())

    return {name: named(build) for name, build in made.items()}


def _nullable(name: str, values: np.ndarray, dtype: Any) -> pl.Series:
    """Integers with -1 for unknown, as a column with nulls."""
    return pl.Series(name, values).replace(-1, None).cast(dtype)


def _pick(ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """ids[rows], -1 where a row is -1."""
    return np.where(rows >= 0, ids[np.maximum(rows, 0)], -1) if len(ids) else np.full(len(rows), -1, dtype=np.int64)


def _looked_up(name: str, values: list[str | None], index: np.ndarray) -> pl.Series:
    """values[index] as strings, null where the index is -1."""
    table = pl.Series(name, values, dtype=pl.String)
    picked = pl.Series("i", index).replace(-1, None).cast(pl.UInt32)
    return table.gather(picked) if len(values) else pl.Series(name, [None] * len(index), dtype=pl.String)


def _dims3(analysis: Analysis, frame: pl.DataFrame, column: str) -> list[pl.Series]:
    """A column of JSON texts such as `[32, 1, 1]` as three integer columns."""
    strings, ids = analysis.trace.strings, frame[column].to_numpy()
    distinct, inverse = np.unique(ids, return_inverse=True)
    parsed = np.full((len(distinct), 3), -1, dtype=np.int64)
    for i, number in enumerate(distinct.tolist()):
        if number < 0:
            continue
        try:
            values = json.loads(strings[number])
        except ValueError:
            continue
        if isinstance(values, list) and len(values) == 3 and all(isinstance(v, int) for v in values):
            parsed[i] = values
    picked = parsed[inverse.reshape(-1)]
    return [_nullable(f"{column}_{axis}", picked[:, i], pl.Int32) for i, axis in enumerate("xyz")]


def _kernels(analysis: Analysis, kept: np.ndarray, app: str | None, rank: int | None) -> pl.DataFrame:
    trace, linked, joins = analysis.trace, analysis.linked, analysis.joins
    device, strings = trace.device, trace.strings
    names_used = np.unique(device["name"].to_numpy())
    short: list[str | None] = [None] * len(strings)
    for number in names_used.tolist():
        short[number] = short_name(strings[number])
    sites, assignments = analysis.sites, analysis.assignments
    launch = analysis.launch
    launched = linked.launches
    direct = np.where(np.isin(joins.link, ("correlation", "time")), launch, -1)
    op_row = _pick(launched["op"].to_numpy(), direct)
    # Of a replayed graph, the call in its capture: with the graph's launch it tells calls apart.
    group = np.where(direct >= 0, _pick(kept, _pick(launched["group"].to_numpy(), direct)), joins.group)
    name = device["name"].to_numpy()
    columns = [
        pl.Series("app", [app], dtype=pl.String).new_from_index(0, len(device)),
        pl.Series("rank", [rank], dtype=pl.Int32).new_from_index(0, len(device)),
        pl.Series("framework", [analysis.framework], dtype=pl.String).new_from_index(0, len(device)),
        pl.Series("id", np.arange(len(device)), dtype=pl.UInt32),
        _looked_up("kind", list(raw.DEVICE_KIND_NAMES), device["kind"].to_numpy().astype(np.int64)),
        _looked_up("name", list(strings.values), name),
        _looked_up("short_name", short, name),
        _nullable("device", device["device"].to_numpy(), pl.Int32),
        _nullable("stream", device["stream"].to_numpy(), pl.Int64),
        device["start"].alias("start_ns"),
        device["dur"].alias("dur_ns"),
        pl.Series("exclusive_ns", analysis.exclusive),
        *_dims3(analysis, device, "grid"),
        *_dims3(analysis, device, "block"),
        _nullable("bytes", device["bytes"].to_numpy(), pl.Int64),
        _nullable("correlation", device["correlation"].to_numpy(), pl.Int64),
        _nullable("graph_node", device["node"].to_numpy(), pl.Int64),
        pl.Series("link", joins.link.astype(str), dtype=pl.String),
        _nullable("launch", launch, pl.UInt32),
        pl.Series("capture_trace", joins.capture.tolist(), dtype=pl.String),
        _nullable("capture_launch", joins.capture_launch, pl.UInt32),
        _nullable("context", joins.site, pl.UInt32),
        _looked_up("op", [s.context.op for s in sites], joins.site),
        _looked_up("module", [s.context.module for s in sites], joins.site),
        _nullable("host_op", _pick(kept, op_row), pl.UInt32),
        _looked_up("dims", [s.dims for s in sites], joins.site),
        _looked_up("dtypes", [s.dtypes for s in sites], joins.site),
        _nullable("step", _pick(kept, analysis.phases.step), pl.UInt32),
        pl.Series("phase", analysis.phases.phase.astype(str), dtype=pl.String),
        pl.Series("phase_source", analysis.phases.source.astype(str), dtype=pl.String),
        pl.Series("prefill_share", analysis.phases.share).fill_nan(None),
        _looked_up("family", [a.family for a in assignments], analysis.assignment),
        _looked_up("operator", [a.operator for a in assignments], analysis.assignment),
        _looked_up("rule", [a.rule for a in assignments], analysis.assignment),
        _looked_up("evidence", ["+".join(a.evidence) for a in assignments], analysis.assignment),
        _nullable("group", group, pl.UInt32),
    ]
    return pl.DataFrame(columns)


def _launches(analysis: Analysis, kept: np.ndarray) -> pl.DataFrame:
    launches, strings = analysis.linked.launches, analysis.trace.strings.values
    return pl.DataFrame(
        [
            pl.Series("id", np.arange(len(launches)), dtype=pl.UInt32),
            _looked_up("api", strings, launches["name"].to_numpy()),
            _looked_up("thread", strings, launches["thread"].to_numpy()),
            launches["start"].alias("start_ns"),
            launches["dur"].alias("dur_ns"),
            _nullable("correlation", launches["correlation"].to_numpy(), pl.Int64),
            _looked_up("kernel", strings, launches["kernel"].to_numpy()),
            _nullable("context", analysis.site_of_launch, pl.UInt32),
            _nullable("host_op", _pick(kept, launches["op"].to_numpy()), pl.UInt32),
            _nullable("step", _pick(kept, launches["step"].to_numpy()), pl.UInt32),
            _nullable("group", _pick(kept, launches["group"].to_numpy()), pl.UInt32),
        ]
    )


def _host_ops(analysis: Analysis, kept: np.ndarray) -> pl.DataFrame:
    linked, strings = analysis.linked, analysis.trace.strings
    keep = kept_ranges(linked, strings)
    rows = np.flatnonzero(keep)
    nodes = linked.nodes[rows]
    names = nodes["name"].to_numpy()
    outer = linked.nodes["parent"].to_numpy()
    parent = nodes["parent"].to_numpy()
    while (over := (parent >= 0) & ~keep[np.maximum(parent, 0)]).any():  # out to the next range that is kept
        parent = np.where(over, outer[np.maximum(parent, 0)], parent)
    kinds = np.where(nodes["kind"].to_numpy() == raw.OP, 0, 1)
    return pl.DataFrame(
        [
            pl.Series("id", np.arange(len(rows)), dtype=pl.UInt32),
            _looked_up("kind", ["op", "module"], kinds),
            _looked_up("name", strings.values, names),
            _looked_up("thread", strings.values, nodes["thread"].to_numpy()),
            nodes["start"].alias("start_ns"),
            nodes["dur"].alias("dur_ns"),
            _nullable("parent", _pick(kept, parent), pl.UInt32),
            _looked_up("dims", strings.values, nodes["dims"].to_numpy()),
            _looked_up("dtypes", strings.values, nodes["dtypes"].to_numpy()),
            _looked_up("concrete", strings.values, nodes["concrete"].to_numpy()),
        ]
    )


def _annotations(analysis: Analysis, kept: np.ndarray) -> pl.DataFrame:
    linked, strings, steps = analysis.linked, analysis.trace.strings, analysis.steps
    rows = np.flatnonzero(linked.nodes["kind"].to_numpy() == raw.ANNOTATION)
    nodes, ranges = linked.nodes[rows], analysis.trace.device_annotations
    known = [steps.get(row) for row in rows.tolist()] + [None] * len(ranges)
    host = len(rows)
    frame = pl.DataFrame(
        [
            pl.Series("id", np.arange(host + len(ranges)), dtype=pl.UInt32),
            pl.Series("side", ["host"] * host + ["device"] * len(ranges), dtype=pl.String),
            _looked_up("name", strings.values, np.r_[nodes["name"].to_numpy(), ranges["name"].to_numpy()]),
            pl.concat([_looked_up("thread", strings.values, nodes["thread"].to_numpy()),
                       pl.Series("thread", [None] * len(ranges), dtype=pl.String)]),
            pl.concat([pl.Series("device", [None] * host, dtype=pl.Int64), ranges["device"]]),
            pl.concat([pl.Series("stream", [None] * host, dtype=pl.Int64), ranges["stream"]]),
            pl.concat([nodes["start"], ranges["start"]]).alias("start_ns"),
            pl.concat([nodes["dur"], ranges["dur"]]).alias("dur_ns"),
            pl.Series("phase", [None if s is None else s.phase for s in known], dtype=pl.String),
        ]
    )  # fmt: skip
    counts = ("context_requests", "context_tokens", "context_kv", "generation_requests", "generation_tokens",
              "generation_kv", "tokens")  # fmt: skip
    return frame.with_columns(
        pl.Series(name, [None if s is None else getattr(s, name) for s in known], dtype=pl.Int64) for name in counts
    )


def _contexts(analysis: Analysis) -> pl.DataFrame:
    """A row a site: `kernels.context` and `launches.context` point here."""
    sites = analysis.sites
    return pl.DataFrame(
        {
            "id": pl.Series(range(len(sites)), dtype=pl.UInt32),
            "ops": pl.Series([list(s.context.ops) for s in sites], dtype=pl.List(pl.String)),
            "modules": pl.Series([list(s.context.modules) for s in sites], dtype=pl.List(pl.String)),
            "frames": pl.Series([list(s.context.frames) for s in sites], dtype=pl.List(pl.String)),
            "annotations": pl.Series([list(s.context.annotations) for s in sites], dtype=pl.List(pl.String)),
            "dims": pl.Series([s.dims for s in sites], dtype=pl.String),
            "dtypes": pl.Series([s.dtypes for s in sites], dtype=pl.String),
            "concrete": pl.Series([s.concrete for s in sites], dtype=pl.String),
        }
    )
