"""Run checks of many shapes: here one after the other, or in processes that a lost device or a deadline may cost."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from atrex.errors import UserError
from atrex.problems.cost import release, start, usable
from atrex.problems.load import load_problem
from atrex.problems.model import Problem, Shape

Check = Callable[[Problem, Shape, str, int], Any]
OVER_TIME = "time budget spent"
# Checks hold several draws of the inputs, their float64 copies and results: about this many times the semantic bytes.
# Where that is too few, memory runs out and the shape is checked again when nothing else runs.
COPIES = 7
SHAPES_A_TASK = 6
LARGE = 2**30


@dataclass(frozen=True)
class Task:
    """Shapes of one operator that one process checks; `memory`: the bytes of device memory it may take meanwhile."""

    operator: str
    folder: Path
    shapes: tuple[str, ...]
    memory: int = 0


@dataclass(frozen=True)
class Lost:
    """In place of a result: the process ended while it checked this shape."""

    reason: str


@dataclass(frozen=True)
class Unrun:
    """In place of a result: the shape was not checked."""

    reason: str


def make_tasks(problem: Problem, shapes: Iterable[Shape]) -> list[Task]:
    """The shapes of an operator in tasks of a few, the largest first and large ones alone."""

    def need(shape: Shape) -> int:
        try:
            return COPIES * problem.work(shape).total_bytes
        except UserError:
            return 0

    found: list[Task] = []
    group: list[str] = []
    most = 0
    for shape in sorted(shapes, key=need, reverse=True):
        if need(shape) > LARGE:
            found.append(Task(problem.operator, problem.folder, (shape.id,), need(shape)))
            continue
        most = max(most, need(shape))
        group.append(shape.id)
        if len(group) == SHAPES_A_TASK:
            found.append(Task(problem.operator, problem.folder, tuple(group), most))
            group, most = [], 0
    if group:
        found.append(Task(problem.operator, problem.folder, tuple(group), most))
    return found


def run_checks(
    tasks: Iterable[Task],
    check: Check,
    device: str,
    seed: int,
    jobs: int = 1,
    deadline: float | None = None,
    again: Callable[[Any], bool] = lambda result: False,
    smallest_first: bool = False,
) -> Iterator[tuple[str, str, Any]]:
    """Yield (operator, shape id, result of `check`, or Lost, or Unrun) for every shape of `tasks`, as each is ready.

    Tasks are started in the order of the memory that they need, the largest first unless told otherwise.
    With one job and no deadline, in this process. Otherwise in processes, as many as `jobs` and as the device's memory
    allows, until `deadline` (of time.monotonic), when they are killed. Of several jobs, a shape whose result `again`
    objects to (memory ran out, or it took long) is checked once more when nothing else runs. `check` must pickle.
    """
    tasks = sorted(tasks, key=lambda task: -task.memory)
    if smallest_first:
        tasks = [replace(task, shapes=task.shapes[::-1]) for task in reversed(tasks)]
    if jobs == 1 and deadline is None:
        yield from _here(tasks, check, device, seed)
        return
    pool = _Pool(check, device, seed, jobs, deadline, again)
    try:
        yield from pool.run(tasks)
    finally:
        pool.kill()


def _here(tasks: Iterable[Task], check: Check, device: str, seed: int) -> Iterator[tuple[str, str, Any]]:
    start(device)
    lost = ""
    for task in tasks:
        problem = load_problem(task.folder)
        for shape_id in task.shapes:
            if lost:
                yield task.operator, shape_id, Unrun(f"the device was lost on {lost}")
                continue
            yield task.operator, shape_id, check(problem, problem.shape(shape_id), device, seed)
            release(device)
            if not usable(device):
                lost = f"{task.operator} {shape_id}"


@dataclass
class _Running:
    process: Any
    task: Task
    left: deque[str] = field(default_factory=deque)


class _Pool:
    def __init__(
        self, check: Check, device: str, seed: int, jobs: int, deadline: float | None, again: Callable[[Any], bool]
    ) -> None:
        self.check, self.device, self.seed = check, device, seed
        self.jobs, self.deadline, self.again = jobs, deadline, again
        self.waiting: deque[Task] = deque()
        self.later: deque[Task] = deque()
        self.running: dict[Connection, _Running] = {}
        self.context = get_context("spawn")
        self.memory = _device_memory(device)

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[str, str, Any]]:
        self.waiting.extend(tasks)
        alone = self.jobs == 1
        while self.waiting or self.running or self.later:
            if not self.waiting and not self.running:
                self.waiting, self.later, alone = self.later, deque(), True
            while (task := self._next(1 if alone else self.jobs)) is not None:
                self._start(task, 1 if alone else self.jobs)
            for connection in wait(list(self.running), timeout=self._left()):
                yield from self._receive(connection, alone)
            if self._left() == 0:
                yield from self._give_up()
                return

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _next(self, jobs: int) -> Task | None:
        """The next task for which there is a process and memory; a task always starts when nothing else runs."""
        if len(self.running) >= jobs:
            return None
        free = self.memory - sum(each.task.memory for each in self.running.values())
        for task in self.waiting:
            if task.memory <= free or not self.running:
                self.waiting.remove(task)
                return task
        return None

    def _start(self, task: Task, jobs: int) -> None:
        mine, theirs = self.context.Pipe(duplex=False)
        threads = max(1, (os.cpu_count() or 1) // jobs)
        arguments = (theirs, task, self.check, self.device, self.seed, threads)
        process = self.context.Process(target=_child, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self.running[mine] = _Running(process, task, deque(task.shapes))

    def _receive(self, connection: Connection, alone: bool) -> Iterator[tuple[str, str, Any]]:
        here = self.running[connection]
        task = here.task
        try:
            shape_id, result = connection.recv()
        except EOFError:
            here.process.join()
            del self.running[connection]
            connection.close()
            if here.left and here.process.exitcode != _DEVICE_LOST:
                yield task.operator, here.left.popleft(), Lost(f"its process ended with {here.process.exitcode}")
            if here.left:
                self.waiting.append(replace(task, shapes=tuple(here.left)))
            return
        here.left.remove(shape_id)
        if not alone and self.again(result):
            self.later.append(replace(task, shapes=(shape_id,)))
        else:
            yield task.operator, shape_id, result

    def _give_up(self) -> Iterator[tuple[str, str, Any]]:
        self.kill()
        left = [
            *((r.task, r.left) for r in self.running.values()),
            *((t, t.shapes) for t in (*self.waiting, *self.later)),
        ]
        for task, shapes in left:
            for shape_id in shapes:
                yield task.operator, shape_id, Unrun(OVER_TIME)

    def kill(self) -> None:
        for each in self.running.values():
            each.process.kill()
            each.process.join()


_DEVICE_LOST = 77


def _child(connection: Connection, task: Task, check: Check, device: str, seed: int, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and kills
    torch.set_num_threads(threads)
    start(device)
    problem = load_problem(task.folder)
    for shape_id in task.shapes:
        connection.send((shape_id, check(problem, problem.shape(shape_id), device, seed)))
        if not usable(device):
            connection.close()
            os._exit(_DEVICE_LOST)
        release(device)
    connection.close()


def _device_memory(device: str) -> float:
    """Bytes that checks may take together. The host's memory is not looked at: shapes for it are small."""
    if torch.device(device).type != "cuda":
        return float("inf")
    return 0.85 * torch.cuda.get_device_properties(torch.device(device)).total_memory
