"""Kernels of replayed graphs: joined to the launches that were captured, in the order of capture.

A replay is one launch, and its kernels say nothing of what caused them. The trace of the capture holds the launches,
with operators, shapes and stacks around them, between BeginCapture and EndCapture. Both are in the same order, so
they are laid side by side; where the launches carry kernel names (ROCm) these are compared, where they do not (CUDA)
the operator around a launch is compared with what the kernel computes. Where lengths differ the two are aligned
first. Nothing is joined by count alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from atrex.traces import raw
from atrex.traces.linking import Context, Linked, table_ids
from atrex.traces.sites import Site

_BEGIN, _END = re.compile(r"StreamBeginCapture"), re.compile(r"StreamEndCapture")
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|ModuleLaunch|ExtLaunch")
_MEMCPY, _MEMSET = re.compile(r"Memcpy"), re.compile(r"Memset")
_SIZE = re.compile(r"^capture_(\d+)(?:_(\w+))?")
MAX_CELLS = 40_000_000  # of an alignment's table
MIN_AGREEMENT = 0.9  # share of comparable positions that must agree before a graph is joined
GAP = -2
_NO_CONTEXT = Context()


@dataclass(frozen=True)
class Node:
    """One captured launch. `name`: of the kernel, where the launch says it. `launch`: its row in the capture's table.

    `group`: id of the MoE call around it in the capture's `host_ops`, or -1.
    """

    kind: int
    name: str | None
    site: Site
    launch: int
    group: int = -1


@dataclass(frozen=True)
class CapturedGraph:
    """The nodes of one BeginCapture/EndCapture pair. `size`, `mode`: from the engine's range
    (`capture_8192_PIECEWISE`).
    """

    trace: str
    nodes: tuple[Node, ...]
    size: int | None = None
    mode: str | None = None


@dataclass(frozen=True)
class Replay:
    """One graph launch: its device records in order (rows, kinds, names) and the step around it.

    `tokens`, `requests`: of the step, None if unknown. `ordinal`: position among the graph launches of its step.
    """

    launch: int
    rows: np.ndarray
    kinds: tuple[int, ...]
    names: tuple[str, ...]
    by_node: bool
    ordinal: int
    tokens: int | None = None
    requests: int | None = None


@dataclass(frozen=True)
class Joined:
    """How a replay was joined: `pairs` of (position in the replay, node), the share of comparable positions that agree,
    whether lengths were equal, how many positions could be compared at all."""

    graph: CapturedGraph
    pairs: list[tuple[int, Node]]
    agreement: float
    exact: bool
    compared: int


def captured_graphs(
    trace_id: str, trace: raw.RawTrace, linked: Linked, sites: Sequence[Site], site_of_launch: np.ndarray
) -> list[CapturedGraph]:
    """The graphs that were captured in a trace, in order.

    A launch that has a device record of its own ran at once and is no node.
    """
    launches, strings = linked.launches, trace.strings
    names = launches["name"].to_numpy()
    opening = [n for n in np.unique(names).tolist() if _BEGIN.search(strings[n])]
    begins = np.flatnonzero(np.isin(names, opening)).tolist()
    if not begins:
        return []
    api = names.tolist()
    ran = set(linked.launch_of[linked.launch_of >= 0].tolist())
    kind_of = {n: _launch_kind(strings[n]) for n in set(api)}
    thread, kernel = launches["thread"].to_list(), launches["kernel"].to_list()
    step, nodes = launches["step"].to_list(), linked.nodes
    group, ids = launches["group"].to_list(), table_ids(linked, strings)
    graphs = []
    for begin in begins:
        found: list[Node] = []
        for i in range(begin + 1, len(api)):
            if thread[i] != thread[begin]:
                continue
            if _END.search(strings[api[i]]) or _BEGIN.search(strings[api[i]]):
                break
            kind = kind_of[api[i]]
            if kind is None or i in ran:
                continue
            name = strings[kernel[i]] if kernel[i] >= 0 else None
            where = int(site_of_launch[i])
            call = int(ids[group[i]]) if group[i] >= 0 else -1
            found.append(Node(kind, name, sites[where] if where >= 0 else Site(_NO_CONTEXT), i, call))
        size, mode = None, None
        at = step[begin] if step[begin] >= 0 else launches["node"][begin]
        while at >= 0:
            named = _SIZE.match(strings[nodes["name"][at]])
            if named and nodes["kind"][at] == raw.ANNOTATION:
                size, mode = int(named[1]), named[2]
                break
            at = nodes["parent"][at]
        if found:
            graphs.append(CapturedGraph(trace_id, tuple(found), size, mode))
    return graphs


def _launch_kind(api: str) -> int | None:
    if _KERNEL_LAUNCH.search(api):
        return raw.KERNEL
    if _MEMCPY.search(api):
        return raw.MEMCPY
    return raw.MEMSET if _MEMSET.search(api) else None


def replays_of(
    trace: raw.RawTrace, launch: np.ndarray, replayed: np.ndarray, step_of_launch: np.ndarray,
    step_counts: Callable[[int], tuple[int | None, int | None]],
) -> list[Replay]:  # fmt: skip
    """The graph launches of a trace with their records in the order of the graph.

    That order is by node id where the records carry one (ids grow in order of capture), else by start. `step_counts`: a
    step's row -> (tokens, requests).
    """
    rows = np.flatnonzero(replayed)
    device = trace.device
    start, node = device["start"].to_numpy(), device["node"].to_numpy()
    kind, name = device["kind"].to_numpy(), device["name"].to_numpy()
    order = rows[np.lexsort((start[rows], launch[rows]))]
    found: list[Replay] = []
    ordinals: dict[int, int] = {}
    for members in np.split(order, np.flatnonzero(np.diff(launch[order])) + 1) if len(order) else []:
        by_node = bool((node[members] >= 0).all())
        if by_node:
            members = members[np.lexsort((start[members], node[members]))]
        at = int(launch[members[0]])
        step = int(step_of_launch[at])
        ordinals[step] = ordinals.get(step, -1) + 1
        tokens, requests = step_counts(step) if step >= 0 else (None, None)
        found.append(
            Replay(at, members, tuple(kind[members].tolist()), tuple(trace.strings[n] for n in name[members].tolist()),
                   by_node, ordinals[step], tokens, requests)
        )  # fmt: skip
    return found


class Joiner:
    """Joins replays to captured graphs. `computes`: kernel name -> token of what it computes (see families.chains)."""

    def __init__(self, graphs: Sequence[CapturedGraph], computes: Callable[[str], str]) -> None:
        self._graphs = list(graphs)
        self._computes = computes
        self._known: dict[tuple[tuple[str, ...], tuple[int, ...], int], Joined | None] = {}
        self._sets: dict[tuple[str, int | None, str | None], list[int]] = {}
        for i, graph in enumerate(self._graphs):
            self._sets.setdefault((graph.trace, graph.size, graph.mode), []).append(i)

    def join(self, replay: Replay) -> Joined | None:
        """The captured graph that a replay is of, position by position; None where none agrees well enough."""
        best: Joined | None = None
        for group in self._candidates(replay):
            ordered = sorted(range(len(group)), key=lambda i: abs(i - replay.ordinal % len(group)))
            for i in ordered:
                joined = self._compare(replay, group[i])
                if joined is None:
                    continue
                if best is None or (joined.exact, joined.agreement) > (best.exact, best.agreement):
                    best = joined
                if joined.exact and joined.agreement == 1.0:
                    return joined
            if best is not None:  # sets of other sizes fit the step less
                return best
        return best

    def _candidates(self, replay: Replay) -> list[list[int]]:
        """Sets of graphs captured together, the one whose size fits the step first: a batch is padded to the next
        size.
        """

        def distance(key: tuple[str, int | None, str | None]) -> tuple[int, int]:
            _, size, mode = key
            asked = replay.tokens if mode == "PIECEWISE" or replay.requests is None else replay.requests
            if size is None or asked is None:
                return (1, 0)
            return (0, size - asked) if size >= asked else (2, asked - size)

        return [self._sets[key] for key in sorted(self._sets, key=distance)]

    def _compare(self, replay: Replay, index: int) -> Joined | None:
        key = (replay.names, replay.kinds, index)
        if key not in self._known:
            self._known[key] = self._align(replay, self._graphs[index])
        return self._known[key]

    def _align(self, replay: Replay, graph: CapturedGraph) -> Joined | None:
        nodes = graph.nodes
        same_length = len(nodes) == len(replay.names)
        if same_length and all(n.kind == k for n, k in zip(nodes, replay.kinds, strict=True)):
            pairs = list(enumerate(nodes))
        else:
            if len(nodes) * len(replay.names) > MAX_CELLS:
                return None
            pairs = self._aligned(replay, nodes)
        verdicts = [self._agrees(replay.kinds[i], replay.names[i], node) for i, node in pairs]
        compared = sum(v is not None for v in verdicts)
        right = sum(v is True for v in verdicts)
        exact = same_length and len(pairs) == len(nodes)
        agreement = right / compared if compared else 0.0
        if not exact:  # gaps count against it: a graph with half its nodes is another graph
            agreement *= 2 * len(pairs) / (len(nodes) + len(replay.names))
        if agreement < MIN_AGREEMENT:
            return None
        if agreement < 1.0:  # what contradicts its launch is not joined to it
            pairs = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict is not False]
        return Joined(graph, pairs, agreement, exact, compared)

    def _aligned(self, replay: Replay, nodes: Sequence[Node]) -> list[tuple[int, Node]]:
        """Global alignment: agreement 3, nothing known 1, contradiction -3, another kind of record never, a gap -2."""
        n, m = len(replay.names), len(nodes)
        score = np.empty((n, m), dtype=np.int32)
        rows: dict[tuple[int, str], np.ndarray] = {}
        for i, question in enumerate(zip(replay.kinds, replay.names, strict=True)):
            if question not in rows:
                rows[question] = np.array([self._score(*question, node) for node in nodes], dtype=np.int32)
            score[i] = rows[question]
        steps = np.arange(m + 1, dtype=np.int32) * -GAP
        previous = -steps
        choice = np.zeros((n + 1, m + 1), dtype=np.int8)  # 0 along the replay, 1 along the capture, 2 both
        choice[0, 1:] = 1
        for i in range(1, n + 1):
            diagonal = np.full(m + 1, -(10**8), dtype=np.int32)
            diagonal[1:] = previous[:-1] + score[i - 1]
            up = previous + GAP
            reached = np.maximum(diagonal, up)
            current = np.maximum.accumulate(reached + steps) - steps
            choice[i] = np.where(current > reached, 1, np.where(diagonal >= up, 2, 0))
            previous = current
        pairs, i, j = [], n, m
        while i and j:
            if choice[i, j] == 2:
                i, j = i - 1, j - 1
                pairs.append((i, nodes[j]))
            elif choice[i, j] == 1:
                j -= 1
            else:
                i -= 1
        return pairs[::-1]

    def _score(self, kind: int, name: str, node: Node) -> int:
        if kind != node.kind:
            return -(10**6)
        return {True: 3, None: 1, False: -3}[self._agrees(kind, name, node)]

    def _agrees(self, kind: int, name: str, node: Node) -> bool | None:
        """Whether a record can be what a launch started; None where nothing can be compared."""
        if kind != node.kind:
            return False
        if node.name is not None:
            return node.name == name
        if kind != raw.KERNEL:
            return None
        expected = _EXPECTED.get(node.site.context.op or "")
        token = self._computes(name)
        return None if expected is None or not token else token in expected


_EXPECTED = {
    **{f"aten::{op}": (op,) for op in ("pow", "mean", "rsqrt", "silu", "gelu", "neg", "cat")},
    **{f"aten::{op}": (op,) for op in ("cos", "sin", "mul", "argmax")},
    "aten::add": ("add",), "aten::add_": ("add",), "aten::sub": ("add",), "aten::mul_": ("mul",),
    "aten::copy_": ("copy",), "aten::clone": ("copy",), "aten::_softmax": ("softmax",),
    **{f"aten::{op}": ("gemm",) for op in ("mm", "addmm", "bmm", "_scaled_mm", "baddbmm")},
    **{f"aten::{op}": ("attention",) for op in ("_flash_attention_forward", "_cudnn_attention_forward",
                                               "_efficient_attention_forward")},
}  # fmt: skip
