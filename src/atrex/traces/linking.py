"""From device records to what caused them: correlation id -> launch -> the host ranges open at the launch.

The chain of a launch is what stands around it on its thread: operators, Python frames, modules, annotations. Launches
share few distinct chains; each is written out once, as a context.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from atrex.traces import raw
from atrex.traces.nesting import Stack

MODULE_PREFIX = "nn.Module: "
_INSTANCE = re.compile(r"_\d+$")
_COUNTER = re.compile(r"#\d+")
# Frames that stand between every two others and say nothing.
_PLUMBING = re.compile(
    r"^(<built-in |threading\.py|torch/(_ops|utils/_contextlib|nn/modules/module|_dynamo/|_inductor/|fx/|cuda/graphs)"
    r"|torch/nn/modules/module\.py|<frozen |runpy\.py|multiprocessing/|contextlib\.py|functools\.py)"
)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Context:
    """The names around a launch, outermost first: operators, classes of modules, Python frames, annotations.

    Ranges that are steps are left out: their names differ from step to step, and the step is a column of its own.
    """

    ops: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()

    @property
    def op(self) -> str | None:
        return self.ops[-1] if self.ops else None

    @property
    def module(self) -> str | None:
        return self.modules[-1] if self.modules else None

    @property
    def frame(self) -> str | None:
        """The innermost frame that is not plumbing."""
        return next((f for f in reversed(self.frames) if not _PLUMBING.match(f)), None)


@dataclass
class Linked:
    """Launches and host ranges of one trace, joined.

    `nodes`: host ranges sorted for `Stack`, with `parent` (row or -1). `launches`: as read, sorted by start, with
    `node` (innermost range), `op` (innermost operator's row), `step` (row of the innermost range that `is_step`
    knows), `group` (row of the outermost range that `is_group` knows), `context` (index into `contexts`); -1 where
    there is none. `used`: which nodes enclose a launch. `launch_of`: for each device record, its launch's row or -1.
    """

    nodes: pl.DataFrame
    launches: pl.DataFrame
    contexts: list[Context]
    used: np.ndarray
    launch_of: np.ndarray
    steps: dict[int, object] = field(default_factory=dict)


def link(trace: raw.RawTrace, is_step: Callable[[str], object], is_group: Callable[[str], bool]) -> Linked:
    """Join one trace. `is_step` and `is_group` are asked once per distinct name of an annotation and of any range."""
    nodes = trace.host[_stack_order(trace.host)].with_columns(end=pl.col("start") + pl.col("dur"))
    launches = trace.launches.sort("start")
    stack = Stack(nodes["thread"].to_numpy().astype(np.int64), nodes["start"].to_numpy(), nodes["end"].to_numpy())
    parent = stack.parents()
    innermost = stack.innermost(launches["thread"].to_numpy().astype(np.int64), launches["start"].to_numpy())
    tables = _NameTables(trace.strings, nodes, is_step, is_group)
    chains = _walk(innermost, parent, nodes, tables)
    contexts, context_of = _contexts(chains, innermost, parent, nodes, tables)
    launches = launches.with_columns(
        pl.Series("node", innermost), pl.Series("op", chains.op), pl.Series("step", chains.step),
        pl.Series("group", chains.group), pl.Series("context", context_of),
    )  # fmt: skip
    return Linked(
        nodes=nodes.with_columns(pl.Series("parent", parent)),
        launches=launches,
        contexts=contexts,
        used=chains.used,
        launch_of=_launch_of(trace.device, launches),
    )


def _stack_order(host: pl.DataFrame) -> np.ndarray:
    """Rows in the order that `Stack` wants: by thread and start; where these are equal longer ones first, then by kind.

    One sort by a combined key, and a second one of the few rows whose keys are equal.
    """
    if not len(host):
        return np.empty(0, dtype=np.int64)
    start, thread = host["start"].to_numpy(), host["thread"].to_numpy()
    _, thread = np.unique(thread, return_inverse=True)
    span = int(start.max() - start.min()) + 1
    key = thread * span + (start - start.min())
    order = pl.Series(key).arg_sort().to_numpy().astype(np.int64)
    equal = np.flatnonzero(np.diff(key[order]) == 0)
    tied = np.zeros(len(order), dtype=bool)
    tied[equal] = tied[equal + 1] = True
    rows = np.sort(order[tied])
    kind, dur = host["kind"].to_numpy()[rows], host["dur"].to_numpy()[rows]
    order[tied] = rows[np.lexsort((kind, -dur, key[rows]))]
    return order


class _NameTables:
    """Per distinct name: what kind of range it is. A module's instances (`RMSNorm_3`) share their class's id."""

    def __init__(
        self,
        strings: raw.Strings,
        nodes: pl.DataFrame,
        is_step: Callable[[str], object],
        is_group: Callable[[str], bool],
    ) -> None:
        n = len(strings)
        self.strings = strings
        self.shared = np.arange(n, dtype=np.int64)  # id used when chains are compared
        self.module, self.step, self.group = (np.zeros(n, dtype=bool) for _ in range(3))
        for kind, name in nodes.select("kind", "name").unique().iter_rows():
            text = strings[name]
            if kind == raw.FRAME and text.startswith(MODULE_PREFIX):
                self.module[name] = True
                self.shared[name] = strings.id(_INSTANCE.sub("", text))
            if kind == raw.ANNOTATION:
                self.step[name] = is_step(text) is not None
                self.shared[name] = -1 if self.step[name] else strings.id(_COUNTER.sub("#", text))
            self.group[name] = is_group(self.label(text))

    @staticmethod
    def label(text: str) -> str:
        """A range's name as it stands in a context: a module by its class."""
        return _INSTANCE.sub("", text.removeprefix(MODULE_PREFIX)) if text.startswith(MODULE_PREFIX) else text


@dataclass
class _Chains:
    hashed: np.ndarray
    op: np.ndarray
    step: np.ndarray
    group: np.ndarray
    used: np.ndarray


def _walk(innermost: np.ndarray, parent: np.ndarray, nodes: pl.DataFrame, tables: _NameTables) -> _Chains:
    """Climb from every launch to its outermost range, all launches at once, hashing the names on the way."""
    n = len(innermost)
    kind, name = nodes["kind"].to_numpy(), nodes["name"].to_numpy()
    hashed = np.zeros(n, dtype=np.uint64)
    op, step, group = (np.full(n, -1, dtype=np.int64) for _ in range(3))
    used = np.zeros(len(nodes), dtype=bool)
    rows = np.flatnonzero(innermost >= 0)
    current = innermost[rows]
    is_step, is_group, shared = tables.step, tables.group, tables.shared
    while rows.size:
        used[current] = True
        names = name[current]
        kinds = kind[current]
        counted = shared[names] >= 0
        mixed = (hashed[rows] ^ (shared[names].astype(np.uint64) * np.uint64(3) + kinds + np.uint64(1))) * _MULTIPLIER
        hashed[rows] = np.where(counted, mixed ^ (mixed >> np.uint64(29)), hashed[rows])
        inner_op = (kinds == raw.OP) & (op[rows] < 0)
        op[rows[inner_op]] = current[inner_op]
        inner_step = is_step[names] & (kinds == raw.ANNOTATION) & (step[rows] < 0)
        step[rows[inner_step]] = current[inner_step]
        grouping = is_group[names]
        group[rows[grouping]] = current[grouping]
        current = parent[current]
        going = current >= 0
        rows, current = rows[going], current[going]
    return _Chains(hashed, op, step, group, used)


def _contexts(
    chains: _Chains, innermost: np.ndarray, parent: np.ndarray, nodes: pl.DataFrame, tables: _NameTables
) -> tuple[list[Context], np.ndarray]:
    """(the distinct chains written out, the index of each launch's chain or -1)."""
    distinct, first, inverse = np.unique(chains.hashed, return_index=True, return_inverse=True)
    kind, name = nodes["kind"].to_numpy(), nodes["name"].to_numpy()
    strings, label = tables.strings, tables.label
    contexts = []
    for launch in first.tolist():
        ops, modules, frames, annotations = [], [], [], []
        at = int(innermost[launch])
        while at >= 0:
            text = strings[name[at]]
            if kind[at] == raw.OP:
                ops.append(text)
            elif kind[at] == raw.ANNOTATION:
                if not tables.step[name[at]]:
                    annotations.append(_COUNTER.sub("#", text))
            elif tables.module[name[at]]:
                modules.append(label(text))
            else:
                frames.append(text)
            at = int(parent[at])
        contexts.append(Context(*(tuple(reversed(names)) for names in (ops, modules, frames, annotations))))
    return contexts, np.where(innermost >= 0, inverse.reshape(-1), -1)


def kept_ranges(linked: Linked, strings: raw.Strings) -> np.ndarray:
    """Which nodes the table `host_ops` keeps: operators and modules around a launch.

    Other frames, several times as many, are in `contexts` by name.
    """
    kind, name = linked.nodes["kind"].to_numpy(), linked.nodes["name"].to_numpy()
    module = [n for n in np.unique(name).tolist() if strings[n].startswith(MODULE_PREFIX)]
    return linked.used & ((kind == raw.OP) | ((kind == raw.FRAME) & np.isin(name, module)))


def table_ids(linked: Linked, strings: raw.Strings) -> np.ndarray:
    """node row -> id in the table `host_ops`, for annotations in `annotations`; -1 for what no table keeps."""
    annotation = linked.nodes["kind"].to_numpy() == raw.ANNOTATION
    ids = np.full(len(linked.nodes), -1, dtype=np.int64)
    for kept in (annotation, kept_ranges(linked, strings)):
        ids[kept] = np.arange(int(kept.sum()))
    return ids


def _launch_of(device: pl.DataFrame, launches: pl.DataFrame) -> np.ndarray:
    """The launch of each device record by (process, correlation id): the first where ids repeat, -1 where none is."""
    known = (
        launches.select("process", "correlation").with_row_index("launch")
        .filter(pl.col("correlation") >= 0)
        .unique(["process", "correlation"], keep="first", maintain_order=True)
    )  # fmt: skip
    joined = device.select("process", "correlation").join(
        known, on=["process", "correlation"], how="left", maintain_order="left"
    )
    return joined["launch"].cast(pl.Int64).fill_null(-1).to_numpy()
