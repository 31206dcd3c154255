"""One session of measurements in the tuner's jail: shapes that fit, and pairs of times of two settings of a kernel."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from atrex.agents.base import Task
from atrex.agents.events import Ended, Event, Message, Output, ToolCall, ToolResult
from atrex.agents.jail import Jail
from atrex.agents.tuner.bench import Bench, Died
from atrex.agents.tuner.knobs import Values, render
from atrex.agents.tuner.search import spread

ROUNDS = 5  # the fewest after which a signed-rank test can fall under 5 %
_SURVEYED, _MEASURED, _CHECKED = 10, 4, 2  # shapes
_MOST_BYTES = {"cpu": 16 << 20, "cuda": 1 << 30}  # of operands: the reference has to run beside the kernel
_REPEATS = 15
_LIMIT = 120.0  # seconds of one order
BETTER = -0.01  # log of the time ratio from which a trial counts as faster
_RESTARTS = 3
TOOL = "measure"


@dataclass
class Clock:
    """What is left until the deadline, and how long a measurement takes."""

    deadline: float
    longest: float = 0.0

    def limit(self) -> float:
        return max(min(_LIMIT, self.deadline - time.monotonic() - 2.0), 1.0)

    def allows(self, measurements: int) -> bool:
        """Whether as many would end before the deadline, at the pace of the slowest so far."""
        return time.monotonic() + 1.2 * measurements * self.longest + 2.0 < self.deadline


class Measuring:
    """A search over one source's knobs that measures; what `_run` does is a subclass's."""

    def __init__(self, task: Task, jail: Jail, source: str, name: str):
        self._task, self._jail, self._source, self._name = task, jail, source, name
        self._clock = Clock(task.deadline)
        self._open = contextlib.ExitStack()
        self._bench: Bench | None = None
        self._asked = self._died = 0
        self._shapes: list[str] = []
        self._check: list[str] = []

    def run(self) -> Iterator[Event]:
        with self._open:
            try:
                yield from self._run()
            except TimeoutError:
                yield Ended(how="timeout")
            except Died as error:
                yield Ended(how="error", reason=f"the measuring program failed: {error}")

    def _run(self) -> Iterator[Event]:
        raise NotImplementedError

    def _start(self) -> None:
        self._bench = self._open.enter_context(Bench(self._jail, self._task.device, self._task.deadline))

    def _survey(self) -> Iterator[Event]:
        """Choose shapes from small to large that this machine measures in time. Returns why that failed, or None."""
        answer = yield from self._measure("sizes", {}, {})
        if "failed" in answer:
            return answer["reason"]
        sizes = answer["sizes"]
        most = _MOST_BYTES[self._task.device]
        small = [name for name in sorted(sizes, key=lambda name: (sizes[name], name)) if sizes[name] <= most]
        self._check = spread(small, _CHECKED) if len(small) < _CHECKED else [small[0], small[len(small) // 3]]
        source = render(self._source, {}, self._name)
        answer = yield from self._measure(
            "survey", {}, {"source": source, "shapes": spread(small, _SURVEYED), "check": self._check}
        )
        if "failed" in answer:
            return f"{self._name} with its defaults: {answer['reason']}"
        self._shapes = spread(answer["shapes"], _MEASURED)
        return None if self._shapes else "no shape is small enough to be measured here"

    def _compare(self, incumbent: Values, trial: Values, number: int, check: list[str]) -> Iterator[Event]:
        order = {
            "incumbent": render(self._source, incumbent, self._name),
            "trial": render(self._source, trial, self._name),
            "shapes": self._shapes,
            "check": check,
            "repeats": _REPEATS,
            "seed": 1000 * self._task.seed + number,
        }
        shown = {"incumbent": incumbent, "trial": trial, "shapes": self._shapes}
        return (yield from self._measure("compare", shown, order))

    def _measure(self, do: str, shown: dict[str, Any], order: dict[str, Any]) -> Iterator[Event]:
        """Ask the program, start it again where an order has ended it. Returns its answer. Raises Died."""
        self._asked += 1
        call, began = str(self._asked), time.monotonic()
        yield ToolCall(id=call, tool=TOOL, arguments={"do": do} | shown)
        try:
            answer = self._bench.ask(do, self._clock.limit(), **order)
        except Died as error:
            self._died += 1
            if self._died > _RESTARTS:
                raise
            self._open.close()
            self._start()
            answer = {"failed": "crash", "reason": str(error)}
        self._clock.longest = max(self._clock.longest, time.monotonic() - began)
        for line in self._bench.said:
            yield Output(stream="err", text=line)
        self._bench.said.clear()
        yield ToolResult(id=call, text=json.dumps(_short(answer)), failed="failed" in answer)
        return answer


def _short(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer for a transcript: of times, how many pairs and the median of either side, in microseconds."""
    shown = {key: value for key, value in answer.items() if key != "done"}
    if "times" in shown:
        shown["times"] = {
            name: {
                "pairs": len(pairs),
                "incumbent_us": round(statistics.median(a for a, _ in pairs), 2),
                "trial_us": round(statistics.median(b for _, b in pairs), 2),
            }
            for name, pairs in shown["times"].items()
        }
    return shown


def say(text: str) -> Message:
    return Message(role="agent", text=text)


def told(chosen: Values) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items())


def percent(ratio: float) -> str:
    return f"{100 * math.exp(ratio):.1f} %"


def write(jail: Jail, name: str, text: str) -> None:
    """Put a file into the workspace; what a kernel may have put there under its name is replaced, never followed."""
    new = jail.workspace / f"{name}.new"
    with contextlib.suppress(OSError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, jail.workspace / name)
