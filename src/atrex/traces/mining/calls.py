"""Device records to calls of an operator: which kernels belong to one call, how long it took, what stood around it.

One call of an operator can be one kernel, several (split attention and its reduction, the products of an MoE), or a
chain of a dozen that eager code launches. Kernels with known host ranges belong together by range: the MoE call they
share; else the outermost custom operator in which everything is this family; else the module that launched them; else
the outermost operator of PyTorch. Without host ranges, or where the order of kernels alone told the family, a run of
neighbours on the stream is divided by the kernel that occurs in it least often.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from atrex.traces.dataset import Dataset

_CUSTOM = re.compile(r"^(?!aten::|prims::|torch::|autograd::)\w+::")
_GROUPED = frozenset((
    "fused_moe", "fp8_blockscale_fused_moe", "moe_topk_gating_softmax", "moe_align_block_size", "moe_count_and_sort",
    "moe_sum_reduce",
))  # fmt: skip
_COUNTS = ("context_requests", "context_tokens", "context_kv", "generation_requests", "generation_tokens",
           "generation_kv", "tokens")  # fmt: skip


@dataclass(frozen=True)
class HostOp:
    """An operator or module around a call's launches. `dims` and `dtypes` by argument, `concrete` its scalars."""

    name: str
    module: bool
    dims: list[Any] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    concrete: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CallGroup:
    """Calls of one operator in one trace that look alike.

    `ns`: exclusive device time of each call. `ops`: around one of them, outermost first. `modules`, `annotations`:
    names around the launch. `step`: counts of their step where it says them. `captured`: the launches are those of a
    graph's capture, so dimensions are those of the padded batch. `runs`: told by order alone.
    """

    trace: str
    operator: str
    phase: str
    prefill_share: float | None
    ns: list[float]
    symbols: tuple[str, ...]
    ops: tuple[HostOp, ...]
    modules: tuple[str, ...]
    annotations: tuple[str, ...]
    step: dict[str, int]
    captured: bool
    runs: bool

    @property
    def calls(self) -> int:
        return len(self.ns)


def calls_of(data: Dataset, trace: str) -> list[CallGroup]:
    """The calls of the suite's operators in one trace, alike ones together."""
    return _Trace(data, trace).groups()


class _Hosts:
    """The host ranges of one trace as arrays."""

    def __init__(self, data: Dataset, trace: str) -> None:
        frame = data.table("host_ops", [trace]).sort("id").collect()
        self.frame = frame
        self.module = (frame["kind"] == "module").to_numpy()
        self.custom = np.array([bool(_CUSTOM.match(n)) for n in frame["name"].to_list()], dtype=bool)
        self.parent = frame["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
        self.launches = data.table("launches", [trace]).sort("id").select("host_op").collect()["host_op"]

    def launched(self, launch: np.ndarray) -> np.ndarray:
        """The innermost host range of each launch id; -1 where there is none."""
        known = self.launches.cast(pl.Int64).fill_null(-1).to_numpy()
        ok = (launch >= 0) & (launch < len(known))
        return np.where(ok, known[np.where(ok, launch, 0)], -1) if len(known) else np.full(len(launch), -1)

    def around(self, ids: Sequence[int]) -> list[int]:
        """`ids` and everything around them, outermost first."""
        found: set[int] = set()
        for number in ids:
            while number >= 0 and number not in found:
                found.add(number)
                number = int(self.parent[number])
        return sorted(found)

    def op(self, number: int) -> HostOp:
        row = self.frame.row(number, named=True)
        return HostOp(row["name"], row["kind"] == "module", *(_parsed(row[c]) for c in ("dims", "dtypes", "concrete")))


def _parsed(text: str | None) -> list[Any]:
    if not text:
        return []
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


class _Trace:
    """One trace's kernels on the way to calls. `root`: per kernel, what tells its call from others."""

    def __init__(self, data: Dataset, trace: str) -> None:
        self.data, self.trace = data, trace
        columns = ["id", "name", "short_name", "device", "stream", "start_ns", "exclusive_ns", "launch", "link",
                   "capture_trace", "capture_launch", "context", "host_op", "group", "phase", "prefill_share", "step",
                   "family", "operator", "evidence"]  # fmt: skip
        self.kernels = data.table("kernels", [trace]).select(columns).sort("device", "stream", "start_ns").collect()
        self.contexts = {row["id"]: row for row in data.table("contexts", [trace]).collect().iter_rows(named=True)}
        # Frames differ between layers that are alike in everything that makes a shape.
        self.alike = {n: (tuple(c["ops"]), c["dims"], c["dtypes"]) for n, c in self.contexts.items()}
        self.hosts: dict[str, _Hosts] = {}
        self.steps = self._steps()

    def _steps(self) -> dict[int, dict[str, int]]:
        rows = self.data.table("annotations", [self.trace]).select("id", *_COUNTS).collect().iter_rows(named=True)
        return {row["id"]: {n: row[n] for n in _COUNTS if row[n] is not None} for row in rows}

    def groups(self) -> list[CallGroup]:
        frame = self.kernels
        if not len(frame) or frame["operator"].null_count() == len(frame):
            return []
        host, number = self._innermost()
        root = self._roots(host, number)
        chained = frame["evidence"].fill_null("").str.contains("chain").to_numpy()
        root = np.where(chained, -1, root)
        keys = pl.DataFrame(
            {"host": host, "root": root, "number": number, "row": np.arange(len(frame))},
            schema={"host": pl.String, "root": pl.Int64, "number": pl.Int64, "row": pl.Int64},
        )
        frame = pl.concat([frame, keys], how="horizontal")
        frame = frame.with_columns(
            replay=pl.when(pl.col("link") == "capture").then(pl.col("launch").cast(pl.Int64)).otherwise(-1)
        )
        frame = frame.with_columns(run=_runs(frame))
        known = frame.filter(pl.col("operator").is_not_null())
        told = _collected(known.filter(pl.col("root") >= 0), ["operator", "host", "root", "replay"])
        runs = _collected(known.filter(pl.col("root") < 0), ["operator", "run"])
        return [*self._alike(told, runs=False), *self._alike(runs, runs=True)]

    def _innermost(self) -> tuple[list[str | None], np.ndarray]:
        """Of each kernel, the trace that holds its host ranges and the innermost of them there, -1 for none."""
        frame = self.kernels
        own = frame["host_op"].cast(pl.Int64).fill_null(-1).to_numpy().copy()
        host: list[str | None] = [self.trace] * len(frame)
        link, capture = frame["link"].to_list(), frame["capture_trace"].to_list()
        launch = frame["capture_launch"].cast(pl.Int64).fill_null(-1).to_numpy()
        for name in {*(c for c in capture if c), *([self.trace] if "node" in link else [])}:
            rows = np.array(
                [i for i, (how, c) in enumerate(zip(link, capture, strict=True))
                 if (how == "capture" and c == name) or (how == "node" and name == self.trace)], dtype=np.int64
            )  # fmt: skip
            if not len(rows) or not (self.data.path / "host_ops" / f"{name}.parquet").exists():
                continue
            own[rows] = self._hosts(name).launched(launch[rows])
            for row in rows.tolist():
                host[row] = name
        return host, own

    def _hosts(self, trace: str) -> _Hosts:
        if trace not in self.hosts:
            self.hosts[trace] = _Hosts(self.data, trace)
        return self.hosts[trace]

    def _roots(self, host: list[str | None], number: np.ndarray) -> np.ndarray:
        family = self.kernels["family"].to_list()
        codes = {name: i for i, name in enumerate(dict.fromkeys(family))}
        code = np.array([codes[f] for f in family], dtype=np.int64)
        root = np.full(len(number), -1, dtype=np.int64)
        names = np.array([h or "" for h in host])
        for name in np.unique(names[number >= 0]).tolist():
            rows = np.flatnonzero((names == name) & (number >= 0))
            root[rows] = _root(self._hosts(name), number[rows], code[rows])
        group = self.kernels["group"].cast(pl.Int64).fill_null(-1).to_numpy()
        operator = self.kernels["operator"].to_list()
        moe = np.array([o in _GROUPED for o in operator], dtype=bool) & (group >= 0)
        return np.where(moe, group, root)

    def _alike(self, calls: pl.DataFrame, runs: bool) -> list[CallGroup]:
        """Calls with the same operator, phase, step counts, contexts and operands, together."""
        found: dict[tuple, dict[str, Any]] = {}
        for row in calls.iter_rows(named=True):
            step = self.steps.get(row["step"], {}) if row["step"] is not None else {}
            around = tuple(dict.fromkeys(self.alike.get(c) for c in row["contexts"]))
            symbols = tuple(sorted(set(row["names"])))
            said = (row["operator"], row["phase"], row["prefill_share"], tuple(step.items()))
            key = (*said, around, symbols, self._operands(row))
            group = found.setdefault(key, {"row": row, "step": step, "ns": []})
            times = 1
            if runs:
                times = min(Counter(row["kernels"]).values())
            group["ns"] += [row["ns"] / times] * times
        return [self._group(g["row"], g["step"], g["ns"], runs) for g in found.values()]

    def _operands(self, row: dict[str, Any]) -> str | None:
        """The operands of the range that is the call, where that range is an operator."""
        at = row.get("root", -1)
        if at is None or at < 0:
            return None
        return self._hosts(row["host"]).frame["dims"][at]

    def _group(self, row: dict[str, Any], step: dict[str, int], ns: list[float], runs: bool) -> CallGroup:
        contexts = [self.contexts[c] for c in row["contexts"] if c is not None and c in self.contexts]
        numbers = [n for n in row["numbers"] if n >= 0]
        if numbers:
            hosts = self._hosts(row["hosts"][0])
            ops = tuple(hosts.op(n) for n in hosts.around(numbers))
        else:
            ops = tuple(op for context in contexts for op in _context_ops(context))
        return CallGroup(
            trace=self.trace, operator=row["operator"], phase=row["phase"], prefill_share=row["prefill_share"], ns=ns,
            symbols=tuple(dict.fromkeys(row["names"])), ops=ops,
            modules=tuple(dict.fromkeys(m for c in contexts for m in c["modules"])),
            annotations=tuple(dict.fromkeys(a for c in contexts for a in c["annotations"])),
            step=step, captured="capture" in row["links"], runs=runs,
        )  # fmt: skip


def _runs(frame: pl.DataFrame) -> pl.Series:
    """Numbers of runs of neighbours with one operator on a stream.

    A product may stand between the two kernels of a gated activation, whose runs go on over it.
    """

    def numbered(part: pl.DataFrame) -> pl.Series:
        new = (part["operator"].fill_null("") != part["operator"].shift().fill_null("")) | (
            part["stream"] != part["stream"].shift()
        ).fill_null(True)
        return new.cum_sum()

    whole = numbered(frame)
    gates = frame.filter((pl.col("family") != "gemm") & (pl.col("family") != "copy"))
    over = dict(zip(gates["id"].to_list(), numbered(gates).to_list(), strict=True))
    found = [
        over[number] if operator == "silu_and_mul" else run
        for number, operator, run in zip(frame["id"], frame["operator"], whole, strict=True)
    ]
    return pl.Series("run", found, dtype=pl.Int64)


def _context_ops(context: dict[str, Any]) -> list[HostOp]:
    """The operators of a context; only the innermost has operands there."""
    ops = [HostOp(name, False) for name in context["ops"]]
    if ops:
        operands = (_parsed(context[c]) for c in ("dims", "dtypes", "concrete"))
        ops[-1] = HostOp(ops[-1].name, False, *operands)
    return ops


def _collected(kernels: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """A row a call: its time, its kernels' names in order, contexts, host ranges, and its first kernel's phase."""
    return (
        kernels.group_by(keys, maintain_order=True)
        .agg(
            pl.col("exclusive_ns").sum().alias("ns"), pl.col("short_name").alias("names"),
            pl.col("name").hash().alias("kernels"),
            pl.col("context").unique(maintain_order=True).alias("contexts"),
            pl.col("number").unique(maintain_order=True).alias("numbers"), pl.col("host").alias("hosts"),
            pl.col("link").unique().alias("links"), pl.col("phase").first(), pl.col("prefill_share").first(),
            pl.col("step").first(),
        )
    )  # fmt: skip


def _root(hosts: _Hosts, number: np.ndarray, code: np.ndarray) -> np.ndarray:
    """The range that is one call, of each kernel: see the module's docstring."""
    low = np.full(len(hosts.parent), np.iinfo(np.int64).max)
    high = np.full(len(hosts.parent), -1, dtype=np.int64)
    current, codes = number.copy(), code.copy()
    while current.size:
        np.minimum.at(low, current, codes)
        np.maximum.at(high, current, codes)
        current = hosts.parent[current]
        going = current >= 0
        current, codes = current[going], codes[going]
    pure = low == high
    custom, plain, module, beyond = (np.full(len(number), -1, dtype=np.int64) for _ in range(4))
    rows, current = np.arange(len(number)), number.copy()
    while rows.size:
        is_module = hosts.module[current]
        second = is_module & (module[rows] >= 0)
        first = is_module & ~second
        beyond[rows[second]] = current[second]
        module[rows[first]] = current[first]
        inside = ~is_module & (module[rows] < 0) & pure[current]
        own = inside & hosts.custom[current]
        custom[rows[own]] = current[own]
        plain[rows[inside]] = current[inside]
        current = hosts.parent[current]
        going = (current >= 0) & (beyond[rows] < 0)
        rows, current = rows[going], current[going]
    # An activation is a module of its own inside the one that multiplies its result on: both are one call.
    direct = {(int(m), int(c)) for m, c in zip(module.tolist(), code.tolist(), strict=True) if m >= 0}
    joins = np.array([(int(b), int(c)) in direct for b, c in zip(beyond, code, strict=True)], dtype=bool)
    module = np.where(joins & (beyond >= 0), beyond, module)
    return np.where(custom >= 0, custom, np.where(module >= 0, module, np.where(plain >= 0, plain, number)))
