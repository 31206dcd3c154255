"""Calls to shapes of the suite: every dimension with its source, and what could not be told with the reason."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from atrex.errors import UserError
from atrex.traces.dataset import Dataset, open_dataset
from atrex.traces.fleet.gather import Gathered
from atrex.traces.fleet.spec import Application, Fleet
from atrex.traces.mining import operators
from atrex.traces.mining.calls import CallGroup, calls_of
from atrex.traces.mining.config import ModelConfig, read_model_config
from atrex.traces.mining.dims import Call, Dims, Unknown, values

LEARNED = {"top_k", "num_experts"}
BUCKETS = Path(__file__).parent / "data" / "buckets.yaml"


def shape_text(init_kwargs: Mapping[str, Any], input_kwargs: Mapping[str, Any]) -> str:
    """A shape's arguments as a text that is equal for equal shapes."""
    return json.dumps([dict(init_kwargs), dict(input_kwargs)], sort_keys=True)


@dataclass(frozen=True)
class Mined:
    """Like calls with their shape. `operator`: whose problem expresses them; `family`: whose kernels they were.

    `ns`: exclusive device time of each call. `chip`: None where no chip file describes the device.
    """

    operator: str
    family: str
    trace: str
    application: str
    phase: str
    chip: str | None
    framework: str | None
    symbols: tuple[str, ...]
    dims: Dims
    init_kwargs: dict[str, Any]
    input_kwargs: dict[str, Any]
    ns: list[float] = field(repr=False)
    prefill_share: float | None = None
    dtypes: tuple[str, ...] = ()

    @property
    def total_ns(self) -> float:
        return sum(self.ns)

    @property
    def shape(self) -> str:
        """The exact shape as a text to compare."""
        return shape_text(self.init_kwargs, self.input_kwargs)

    @property
    def bucket(self) -> str:
        """What shapes of one bucket have in common: fixed dimensions, settings and the buckets of the dynamic ones."""
        fixed = {name: d.value for name, d in self.dims.items() if d.bucket is None}
        dynamic = {name: bucket_of(d.bucket, d.value) for name, d in self.dims.items() if d.bucket is not None}
        return json.dumps([fixed, dynamic], sort_keys=True)


@dataclass(frozen=True)
class Unmined:
    """Calls whose shape could not be told, and why."""

    operator: str
    trace: str
    application: str
    phase: str
    ns: float
    reason: str
    prefill_share: float | None = None


@cache
def buckets() -> dict[str, list[int]]:
    """Edges of the buckets by kind. Raises UserError if the file is not of that form."""
    content = yaml.safe_load(BUCKETS.read_text(encoding="utf-8"))
    for kind, edges in content.items():
        if not edges or sorted(set(edges)) != edges:
            raise UserError(f"{BUCKETS}: {kind}: expected rising edges")
    return content


def bucket_of(kind: str, value: int) -> int:
    """The edge of the bucket that a value belongs to: the first that is not under it, past the last the value."""
    return next((edge for edge in buckets()[kind] if value <= edge), value)


@dataclass(frozen=True)
class _Task:
    path: Path
    trace: str
    application: str
    about: Application
    config: ModelConfig | None
    chip: str | None


def mine(
    fleet: Fleet, gathered: Gathered, jobs: int | None = None, done: Callable[[int, int], None] = lambda n, all_: None
) -> tuple[list[Mined], list[Unmined]]:
    """Shapes of every call of the suite's operators in a fleet's serving traces.

    `done` is told how many traces are finished, and of how many. Raises UserError for an unreadable model_config.
    """
    configs = {name: config_of(fleet, name) for name in fleet.applications}
    tasks = [
        _Task(gathered.data.path, trace, app, fleet.applications[app], configs[app], gathered.chip_of(trace))
        for trace in gathered.serving()
        for app in (gathered.of[trace][0],)
    ]
    mined: list[Mined] = []
    unmined: list[Unmined] = []
    for number, (found, missing) in enumerate(_run(tasks, jobs or os.cpu_count() or 1), 1):
        mined += found
        unmined += missing
        done(number, len(tasks))
    return mined, unmined


def config_of(fleet: Fleet, name: str) -> ModelConfig | None:
    """The model of an application as one of its cards holds it; None without a model_config."""
    path, app = fleet.config_of(name), fleet.applications[name]
    return None if path is None else read_model_config(path, app.tensor_parallel, app.expert_parallel)


def _run(tasks: list[_Task], jobs: int) -> Iterator[tuple[list[Mined], list[Unmined]]]:
    if jobs == 1 or len(tasks) < 4:  # a process takes longer to start than a small trace to read
        yield from map(_mine_trace, tasks)
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_mine_trace, tasks)


def _mine_trace(task: _Task) -> tuple[list[Mined], list[Unmined]]:
    data: Dataset = open_dataset(task.path)
    framework = data.summaries[task.trace]["framework"]
    mined: list[Mined] = []
    open_: list[tuple[CallGroup, str]] = [(group, "") for group in calls_of(data, task.trace)]
    peers: Counter[str] = Counter()
    for group, _ in open_:
        if not any(op.dims for op in group.ops):
            peers[group.operator] += group.calls
    ran = frozenset((group.operator, group.phase) for group, _ in open_)
    learned: dict[str, Any] = {}
    for _ in range(2):  # what the first pass learned of the architecture may be all that a call lacks
        missing = []
        for group, _ in open_:
            try:
                mined.append(_shape(Call(group, task.config, task.about, learned, peers, ran), task, framework))
            except Unknown as error:
                missing.append((group, str(error)))
        open_, learned = missing, _learned(mined)
    return mined, [
        Unmined(g.operator, task.trace, task.application, g.phase, sum(g.ns), why, g.prefill_share) for g, why in open_
    ]


def _learned(mined: list[Mined]) -> dict[str, Any]:
    """Dimensions of the mixture of experts that operands tell alike wherever they do."""
    found: dict[str, set[Any]] = {}
    for each in mined:
        for name in LEARNED & each.dims.keys():
            if each.dims[name].source == "traced":
                found.setdefault(name, set()).add(each.dims[name].value)
    return {name: values_.pop() for name, values_ in found.items() if len(values_) == 1}


def _shape(call: Call, task: _Task, framework: str | None) -> Mined:
    group = call.group
    try:
        own = operators.module(group.operator)
    except KeyError:
        raise Unknown("no file maps its dimensions to the suite's arguments") from None
    operator = (own.serves(call) if hasattr(own, "serves") else None) or group.operator
    chosen = operators.module(operator)
    dims = chosen.dims(call)
    zero = [name for name, d in dims.items() if isinstance(d.value, int | float) and d.value < 0]
    if zero:
        raise Unknown(f"{zero[0]}: {dims[zero[0]].value}, which no call has")
    init, kwargs = chosen.kwargs(values(dims))
    return Mined(
        operator=operator, family=group.operator, trace=group.trace, application=task.application, phase=group.phase,
        chip=task.chip, framework=framework, symbols=group.symbols, dims=dims, init_kwargs=init, input_kwargs=kwargs,
        ns=group.ns, prefill_share=group.prefill_share, dtypes=call.dtypes(),
    )  # fmt: skip
