"""The agent: from a template with knobs to a candidate with the best that were found."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.agents.base import Choice, Need, Task, register
from atrex.agents.events import Ended, Event, Message, Output, ToolCall, ToolResult, Tools
from atrex.agents.jail import Jail, Terms
from atrex.agents.tuner import templates
from atrex.agents.tuner.bench import Bench, Died, readable
from atrex.agents.tuner.knobs import Knob, Values, find, render, values
from atrex.agents.tuner.search import Search, log_ratio, spread
from atrex.errors import UserError
from atrex.scoring.comparison import Comparison, compare_times

TRIALS = 32
ROUNDS = 5  # the fewest after which a signed-rank test can fall under 5 %
CONFIDENCE = 0.95
_SURVEYED, _MEASURED, _CHECKED = 10, 4, 2  # shapes
_MOST_BYTES = {"cpu": 16 << 20, "cuda": 1 << 30}  # of operands: the reference has to run beside the kernel
_REPEATS = 15
_LIMIT = 120.0  # seconds of one order
_BETTER = -0.01  # log of the time ratio from which a trial becomes the incumbent
_RESTARTS = 3
TOOL = "measure"


@dataclass
class _Clock:
    """What is left until the deadline, and how long a measurement takes."""

    deadline: float
    longest: float = 0.0

    def limit(self) -> float:
        return max(min(_LIMIT, self.deadline - time.monotonic() - 2.0), 1.0)

    def allows(self, measurements: int) -> bool:
        """Whether as many would end before the deadline, at the pace of the slowest so far."""
        return time.monotonic() + 1.2 * measurements * self.longest + 2.0 < self.deadline


@register("tuner")
class Tuner:
    """`tuner[:TRIALS][:FILE]`: searches over the knobs of a template, or of a file (or folder of OPERATOR.py) of yours.

    It reads no prompt. What is found replaces the defaults only if fresh measurements show that it is faster.
    """

    keeps_usd = False

    def __init__(self, choice: Choice):
        self._trials, self._file = _parse(choice.argument)

    @classmethod
    def needs(cls) -> list[Need]:
        return [Need("optuna", importlib.util.find_spec("optuna") is not None, "pip install 'atrex[agents]'")]

    def terms(self, task: Task) -> Terms:
        return Terms(readable=readable(task.device), device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return ()

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        yield Tools(names=(TOOL,))
        try:
            file = self._source(task)
            source, name = file.read_text(encoding="utf-8"), file.name
            knobs = find(source, name)
        except (UserError, OSError, UnicodeDecodeError) as error:
            yield Ended(how="error", reason=str(error))
            return
        _write(jail, task.output, render(source, {}, name, plain=True))
        if not knobs:
            yield _say(f"{name} has no knobs (NAME: Literal[...] = value at module level): it is left as it is")
            yield Ended(how="done")
        elif task.device == "cuda" and jail.terms.device != "cuda":
            yield _say(f"{_told(values(knobs))}: the defaults, since there is no device to measure on")
            yield Ended(how="done")
        else:
            yield from _Tuning(task, jail, source, name, knobs, self._trials).run()

    def _source(self, task: Task) -> Path:
        if self._file is None:
            return templates.path(task.dsl, task.operator)
        return self._file / f"{task.operator}.py" if self._file.is_dir() else self._file


def _parse(argument: str) -> tuple[int, Path | None]:
    first, _, rest = argument.partition(":")
    trials, file = (int(first), rest) if first.isdecimal() else (TRIALS, argument)
    if trials < 1 or (file and not Path(file).exists()):
        raise UserError(f"--agent tuner:{argument}: expected tuner, tuner:TRIALS, tuner:FILE or tuner:TRIALS:FILE")
    return trials, Path(file) if file else None


class _Tuning:
    """One search."""

    def __init__(self, task: Task, jail: Jail, source: str, name: str, knobs: tuple[Knob, ...], trials: int):
        self._task, self._jail, self._source, self._name, self._knobs = task, jail, source, name, knobs
        self._most, self._defaults = trials, values(knobs)
        self._clock = _Clock(task.deadline)
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
        self._start()
        device = self._bench.about["device"]
        if self._task.device == "cuda" and device is None:
            yield _say(f"{_told(self._defaults)}: the defaults, since no device is to be seen from the jail")
            yield Ended(how="done")
            return
        if why := (yield from self._survey()):
            yield Ended(how="error", reason=why)
            return
        yield _say(
            f"{self._name} with {_told(self._defaults)}; up to {self._most} trials on shapes "
            f"{', '.join(self._shapes)} of {device or 'this CPU'}"
        )
        best = yield from self._search()
        if best == self._defaults:
            yield _say("no trial was faster: the defaults stay")
        else:
            yield from self._confirm(best)
        yield Ended(how="done")

    def _start(self) -> None:
        self._bench = self._open.enter_context(Bench(self._jail, self._task.device, self._task.deadline))

    # -- steps ---------------------------------------------------------------------------------------------------------

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

    def _search(self) -> Iterator[Event]:
        """Returns the values of the last incumbent."""
        search = Search(self._knobs, self._task.seed)
        incumbent, level = self._defaults, 0.0
        for number in range(1, self._most + 1):
            if not self._clock.allows(1 + ROUNDS):
                yield _say("the time left is for the last comparison")
                break
            chosen = search.ask()
            if chosen is None:
                yield _say("every combination was tried")
                break
            answer = yield from self._compare(incumbent, chosen, number, self._check)
            text = f"trial {number}: {_told(chosen)}: "
            if "failed" in answer:
                search.tell(chosen, None)
                yield _say(f"{text}{answer['failed']}: {answer['reason']}")
                continue
            ratio = log_ratio(answer["times"])
            search.tell(chosen, level + ratio)
            text += f"{_percent(ratio)} of the incumbent's time"
            if ratio < _BETTER:
                incumbent, level = chosen, level + ratio
                text += "; it is the incumbent now"
            yield _say(text)
        return incumbent

    def _confirm(self, best: Values) -> Iterator[Event]:
        """Measure the best against the defaults again, in fresh processes with other inputs; keep what that shows."""
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in self._shapes}
        for number in range(ROUNDS):
            seed = self._most + 1 + number
            answer = yield from self._compare(self._defaults, best, seed, self._check if number == 0 else [])
            if "failed" in answer:
                yield _say(f"{_told(best)}: {answer['failed']} when measured again: the defaults stay")
                return
            for name, pairs in answer["times"].items():
                rounds[name].append(tuple(statistics.median(side) for side in zip(*pairs, strict=True)))
        found = compare_times(rounds, CONFIDENCE)
        if found.p_faster <= 1 - CONFIDENCE:
            _write(self._jail, self._task.output, render(self._source, best, self._name, plain=True))
            yield _say(f"{_told(best)}: {_speedup(found)}: kept")
        else:
            yield _say(f"{_told(best)}: {_speedup(found)}, not shown to be faster: the defaults stay")

    # -- measurements --------------------------------------------------------------------------------------------------

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


def _say(text: str) -> Message:
    return Message(role="agent", text=text)


def _told(chosen: Values) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items())


def _percent(ratio: float) -> str:
    return f"{100 * math.exp(ratio):.1f} %"


def _speedup(found: Comparison) -> str:
    one = found.overall
    return (
        f"{one.ratio:.3f} times as fast as the defaults ({100 * found.confidence:g} % interval {one.low:.3f} to "
        f"{one.high:.3f}, {found.rounds} fresh processes, p = {found.p_faster:.2g})"
    )


def _write(jail: Jail, name: str, text: str) -> None:
    """Put a file into the workspace; what a kernel may have put there under its name is replaced, never followed."""
    new = jail.workspace / f"{name}.new"
    with contextlib.suppress(OSError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, jail.workspace / name)
