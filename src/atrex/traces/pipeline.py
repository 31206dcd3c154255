"""One file from records to tables: link, classify, label phases, share out device time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from atrex.traces import labels, linking, names, overlap, phases, raw
from atrex.traces.families.chains import streams
from atrex.traces.families.match import ANCHORS, Assignment, Matcher
from atrex.traces.families.versions import Version
from atrex.traces.graphs import CapturedGraph, Joiner, captured_graphs, replays_of
from atrex.traces.linking import Linked
from atrex.traces.phases import Step
from atrex.traces.sites import Site, sites_of
from atrex.traces.timejoin import BY_TIME, by_own_clock

GRAPH_LAUNCH = re.compile(r"GraphLaunch")
# How a record was joined to what caused it. `graph`: its graph's launch is known, what it does inside is not.
LINKS = ("correlation", "capture", "node", "time", "graph", "none")


@dataclass(frozen=True)
class Options:
    """`versions`: package -> version of the frameworks that ran. `phase`: overrides what the trace says.

    `host`: a trace of host ranges to join by time, its clock `clock_offset` nanoseconds behind the device's if that
    is known.
    """

    app: str | None = None
    rank: int | None = None
    versions: Mapping[str, Version] = field(default_factory=dict)
    phase: str | None = None
    host: Path | None = None
    clock_offset: int | None = None


@dataclass
class Joins:
    """How each device record was joined to its cause: `link` (one of LINKS), `site` (index or -1), and for records of
    graphs the capture's trace, the launch's row there and the MoE call around it. `replays`, `joined`: graph launches,
    and those joined."""

    link: np.ndarray
    site: np.ndarray
    capture: np.ndarray
    capture_launch: np.ndarray
    group: np.ndarray
    replays: int = 0
    joined: int = 0
    agreement: list[float] = field(default_factory=list)


@dataclass
class Analysis:
    """A trace with everything known about its records, still in arrays.

    Per device record: `launch` (row of `linked.launches` or -1), `joins`, `assignment` (index into `assignments`),
    `phases`, `exclusive` nanoseconds. `overlapping`: records that overlap another on their own stream. `captured`:
    graphs captured in this trace.
    """

    trace: raw.RawTrace
    linked: Linked
    sites: list[Site]
    launch: np.ndarray
    joins: Joins
    assignments: list[Assignment]
    assignment: np.ndarray
    phases: labels.Phases
    steps: dict[int, Step]
    exclusive: np.ndarray
    overlapping: int
    site_of_launch: np.ndarray
    captured: list[CapturedGraph]
    framework: str | None = None

    @property
    def path(self) -> Path:
        return self.trace.path


def link_trace(trace: raw.RawTrace, matcher: Matcher) -> Linked:
    """Join a trace's records on their own."""
    return linking.link(trace, phases.parse_step, matcher.is_group)


def analyse(
    trace: raw.RawTrace,
    options: Options,
    captures: Sequence[CapturedGraph] = (),
    trace_id: str = "",
    matcher: Matcher | None = None,
) -> Analysis:
    """Everything about one trace. `captures`: graphs captured in other traces that its replays may be of."""
    matcher = matcher or Matcher(versions=options.versions)
    if not len(trace.launches):
        trace = by_own_clock(trace)
    linked = link_trace(trace, matcher)
    sites, site_of_launch = sites_of(linked, trace.strings)
    launch = linked.launch_of
    steps = labels.steps_of(linked, trace.strings)
    own = captured_graphs(trace_id, trace, linked, sites, site_of_launch)
    joins = _links(linked, trace, launch, site_of_launch)
    _join_nodes(joins, trace, linked, site_of_launch)
    _join_graphs(joins, trace, linked, sites, steps, [*own, *captures], matcher)
    kinds = trace.device["kind"].to_numpy()
    assignments, assignment = classify(trace, kinds, joins.site, sites, matcher)
    apply_chains(trace, assignments, assignment, matcher)
    labelled = labels.label(trace, linked, steps, launch, options.phase)
    if not steps and not any(a.family == "training" for a in assignments):
        labels.from_attention(labelled, trace.device, _hints(assignments, assignment, sites, joins.site))
    device = trace.device
    exclusive, overlapping = overlap.exclusive(
        device["device"].to_numpy(), device["stream"].to_numpy(), device["start"].to_numpy(), device["dur"].to_numpy(),
        cut_earlier=trace.meta.vendor == "amd",
    )  # fmt: skip
    return Analysis(
        trace=trace, linked=linked, sites=sites, launch=launch, joins=joins, assignments=assignments,
        assignment=assignment, phases=labelled, steps=steps, exclusive=exclusive, overlapping=overlapping,
        site_of_launch=site_of_launch, captured=own, framework=_framework(trace, sites, matcher),
    )  # fmt: skip


def _framework(trace: raw.RawTrace, sites: Sequence[Site], matcher: Matcher) -> str | None:
    """The engine that ran, by every name in the trace and around the captured launches it was joined to."""
    contexts = {site.context for site in sites}
    around = (name for c in contexts for names in (c.ops, c.modules, c.frames) for name in names)
    return matcher.framework({*trace.meta.processes.values(), *trace.strings.values, *around})


def graph_launches(linked: Linked, strings: raw.Strings) -> np.ndarray:
    """Which launches replay a graph."""
    api = linked.launches["name"].to_numpy()
    names_used = np.unique(api)
    replay = {int(i) for i in names_used if i >= 0 and GRAPH_LAUNCH.search(strings[i])}
    return np.isin(api, list(replay)) if replay else np.zeros(len(api), dtype=bool)


def _links(linked: Linked, trace: raw.RawTrace, launch: np.ndarray, site_of_launch: np.ndarray) -> Joins:
    n = len(launch)
    joins = Joins(
        link=np.full(n, "none", dtype=object), site=np.full(n, -1, dtype=np.int64),
        capture=np.full(n, None, dtype=object), capture_launch=np.full(n, -1, dtype=np.int64),
        group=np.full(n, -1, dtype=np.int64),
    )  # fmt: skip
    if not len(linked.launches):
        return joins
    known = launch >= 0
    replayed = known & graph_launches(linked, trace.strings)[np.maximum(launch, 0)]
    joins.link[known] = "correlation"
    joins.link[replayed] = "graph"
    by_time = known & (linked.launches["name"].to_numpy() == trace.strings.id(BY_TIME))[np.maximum(launch, 0)]
    joins.link[by_time] = "time"
    direct = known & ~replayed
    joins.site[direct] = site_of_launch[launch[direct]]
    return joins


def _join_nodes(joins: Joins, trace: raw.RawTrace, linked: Linked, site_of_launch: np.ndarray) -> None:
    """Join records of graphs to the call that created their node, where the trace has both with the node's id."""
    created = linked.launches["created"].to_numpy()
    if not (created >= 0).any():
        return
    known = dict(zip(created.tolist(), range(len(created)), strict=True))
    node = trace.device["node"].to_numpy()
    for row in np.flatnonzero((joins.link == "graph") | ((joins.link == "none") & (node >= 0))).tolist():
        at = known.get(int(node[row]), -1) if node[row] >= 0 else -1
        if at >= 0 and site_of_launch[at] >= 0:
            joins.site[row], joins.link[row], joins.capture_launch[row] = site_of_launch[at], "node", at


def _join_graphs(
    joins: Joins, trace: raw.RawTrace, linked: Linked, sites: list[Site], steps: Mapping[int, Step],
    captures: Sequence[CapturedGraph], matcher: Matcher,
) -> None:  # fmt: skip
    """Join the records of graphs that are still without a site to captured launches; `sites` grows by theirs."""

    def counts(row: int) -> tuple[int | None, int | None]:
        step = steps[row]
        tokens = step.tokens
        if tokens is None and step.context_tokens is not None:
            tokens = step.context_tokens + (step.generation_tokens or 0)
        return tokens, step.generation_requests

    replays = replays_of(trace, linked.launch_of, joins.link == "graph", linked.launches["step"].to_numpy(), counts)
    joins.replays = len(replays)
    if not captures or not replays:
        return
    joiner = Joiner(captures, matcher.computes)
    known: dict[Site, int] = {}
    for replay in replays:
        found = joiner.join(replay)
        if found is None:
            continue
        joins.joined += 1
        joins.agreement.append(found.agreement)
        for position, node in found.pairs:
            at = known.get(node.site)
            if at is None:
                at = known[node.site] = len(sites)
                sites.append(node.site)
            row = replay.rows[position]
            joins.site[row], joins.link[row] = at, "capture"
            joins.capture[row], joins.capture_launch[row] = found.graph.trace, node.launch
            joins.group[row] = node.group


def classify(
    trace: raw.RawTrace, kinds: np.ndarray, site: np.ndarray, sites: Sequence[Site], matcher: Matcher
) -> tuple[list[Assignment], np.ndarray]:
    """(distinct assignments, the assignment of each device record): the rules are asked once per (name, kind, site)."""
    keys = pl.DataFrame({"kind": kinds, "name": trace.device["name"].to_numpy(), "site": site})
    distinct = keys.unique(maintain_order=True).with_row_index("key")
    assignments: list[Assignment] = []
    positions: dict[Assignment, int] = {}
    of_key = []
    asked: dict[tuple[int, int, object, str | None], int] = {}
    for _, kind, name, where in distinct.iter_rows():
        at = sites[where] if where >= 0 else None
        question = (kind, name, at.context if at else None, at.dtypes if at else None)
        position = asked.get(question)
        if position is None:
            found = matcher.classify(
                trace.strings[name], raw.DEVICE_KIND_NAMES[kind], at.context if at else linking.Context(),
                (at.dtypes or "") if at else "",
            )  # fmt: skip
            position = positions.setdefault(found, len(assignments))
            if position == len(assignments):
                assignments.append(found)
            asked[question] = position
        of_key.append(position)
    key = keys.join(distinct, on=["kind", "name", "site"], how="left", maintain_order="left")["key"].to_numpy()
    return assignments, np.array(of_key, dtype=np.int64)[key] if len(key) else np.empty(0, dtype=np.int64)


def apply_chains(trace: raw.RawTrace, assignments: list[Assignment], assignment: np.ndarray, matcher: Matcher) -> None:
    """Give kernels that only their class explained the family of the chain they stand in; in place."""
    chains = matcher.rules.chains
    by_class = np.array([a.rule.startswith("class:") or not a.rule for a in assignments], dtype=bool)
    if not by_class.any():
        return
    name = trace.device["name"].to_numpy()
    tokens = {int(n): chains.token(trace.strings[n]) for n in np.unique(name)}
    anchor = [ANCHORS.get(a.family) for a in assignments]
    anchored = np.array([a is not None for a in anchor], dtype=bool)
    positions = {a: i for i, a in enumerate(assignments)}
    columns = (trace.device[c].to_numpy() for c in ("device", "stream", "start"))
    memset = trace.device["kind"].to_numpy() == raw.MEMSET  # workspaces are cleared in the middle of chains
    for rows in streams(*columns):
        rows = rows[~memset[rows]]
        if not (by_class & ~anchored)[assignment[rows]].any():
            continue
        known = assignment[rows].tolist()
        sequence = [anchor[a] or tokens[n] for a, n in zip(known, name[rows].tolist(), strict=True)]
        free = (by_class & ~anchored)[assignment[rows]]
        for position, chain in chains.find(sequence, lambda i, free=free: bool(free[i])):
            found = Assignment(chain.family, matcher.rules.families[chain.family].operator, chain.rule, ("chain",))
            number = positions.setdefault(found, len(assignments))
            if number == len(assignments):
                assignments.append(found)
            assignment[rows[position]] = number


def _hints(
    assignments: Sequence[Assignment], assignment: np.ndarray, sites: Sequence[Site], site: np.ndarray
) -> np.ndarray:
    """What each record says about the phase of its step: attention operators by query length, others by their rule."""
    by_site = [labels.attention_hint(s.context.op, s.dims) for s in sites]
    by_rule = [a.phase for a in assignments]
    hints = np.full(len(assignment), None, dtype=object)
    for row, (a, s) in enumerate(zip(assignment.tolist(), site.tolist(), strict=True)):
        hints[row] = (by_site[s] if s >= 0 else None) or by_rule[a]
    return hints


def short_name(name: str) -> str:
    """A kernel's name fit for a table: qualified, without parameters, template arguments dropped."""
    return names.parse(name).base
