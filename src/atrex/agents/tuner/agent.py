"""The agent: from a template with knobs to a candidate with the best that were found."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator
from pathlib import Path

from atrex.agents.base import Choice, Need, Task, register
from atrex.agents.events import Ended, Event, Tools
from atrex.agents.jail import Jail, Terms
from atrex.agents.tuner import campaign, templates
from atrex.agents.tuner.bench import readable
from atrex.agents.tuner.knobs import Knob, Values, find, render, values
from atrex.agents.tuner.measuring import BETTER, ROUNDS, TOOL, Measuring, percent, say, told, write
from atrex.agents.tuner.search import Search, log_ratio
from atrex.errors import UserError
from atrex.scoring.comparison import Comparison, compare_times

TRIALS = 32
CONFIDENCE = 0.95


@register("tuner")
class Tuner:
    """`tuner[:TRIALS][:FILE]`: searches over the knobs of a template, or of a file (or folder of OPERATOR.py) of yours.

    It reads no prompt. What is found replaces the defaults only if fresh measurements show that it is faster. In a
    campaign it takes one step a session (`campaign`); with 0 trials it plans from the campaign's memory alone.
    """

    keeps_usd = False

    def __init__(self, choice: Choice):
        self._trials, self._file = _parse(choice.argument)

    @classmethod
    def needs(cls) -> list[Need]:
        return [Need("optuna", importlib.util.find_spec("optuna") is not None, "pip install optuna")]

    def terms(self, task: Task) -> Terms:
        return Terms(readable=readable(task.device), device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return ()

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        yield Tools(names=(TOOL,))
        if place := campaign.place(jail.workspace):
            yield from campaign.step(place, task, jail, self._trials, lambda: self._source(task), self._file is None)
            return
        try:
            file = self._source(task)
            source, name = file.read_text(encoding="utf-8"), file.name
            knobs = find(source, name)
        except (UserError, OSError, UnicodeDecodeError) as error:
            yield Ended(how="error", reason=str(error))
            return
        write(jail, task.output, render(source, {}, name, plain=True))
        if not knobs:
            yield say(f"{name} has no knobs (NAME: Literal[...] = value at module level): it is left as it is")
            yield Ended(how="done")
        elif task.device == "cuda" and jail.terms.device != "cuda":
            yield say(f"{told(values(knobs))}: the defaults, since there is no device to measure on")
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
    if file and not Path(file).exists():
        raise UserError(f"--agent tuner:{argument}: expected tuner, tuner:TRIALS, tuner:FILE or tuner:TRIALS:FILE")
    return trials, Path(file) if file else None


class _Tuning(Measuring):
    """One search."""

    def __init__(self, task: Task, jail: Jail, source: str, name: str, knobs: tuple[Knob, ...], trials: int):
        super().__init__(task, jail, source, name)
        self._knobs, self._most, self._defaults = knobs, trials, values(knobs)

    def _run(self) -> Iterator[Event]:
        self._start()
        device = self._bench.about["device"]
        if self._task.device == "cuda" and device is None:
            yield say(f"{told(self._defaults)}: the defaults, since no device is to be seen from the jail")
            yield Ended(how="done")
            return
        if why := (yield from self._survey()):
            yield Ended(how="error", reason=why)
            return
        yield say(
            f"{self._name} with {told(self._defaults)}; up to {self._most} trials on shapes "
            f"{', '.join(self._shapes)} of {device or 'this CPU'}"
        )
        best = yield from self._search()
        if best == self._defaults:
            yield say("no trial was faster: the defaults stay")
        else:
            yield from self._confirm(best)
        yield Ended(how="done")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _search(self) -> Iterator[Event]:
        """Returns the values of the last incumbent."""
        search = Search(self._knobs, self._task.seed)
        incumbent, level = self._defaults, 0.0
        for number in range(1, self._most + 1):
            if not self._clock.allows(1 + ROUNDS):
                yield say("the time left is for the last comparison")
                break
            chosen = search.ask()
            if chosen is None:
                yield say("every combination was tried")
                break
            answer = yield from self._compare(incumbent, chosen, number, self._check)
            text = f"trial {number}: {told(chosen)}: "
            if "failed" in answer:
                search.tell(chosen, None)
                yield say(f"{text}{answer['failed']}: {answer['reason']}")
                continue
            ratio = log_ratio(answer["times"])
            search.tell(chosen, level + ratio)
            text += f"{percent(ratio)} of the incumbent's time"
            if ratio < BETTER:
                incumbent, level = chosen, level + ratio
                text += "; it is the incumbent now"
            yield say(text)
        return incumbent

    def _confirm(self, best: Values) -> Iterator[Event]:
        """Measure the best against the defaults again, in fresh processes with other inputs; keep what that shows."""
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in self._shapes}
        for number in range(ROUNDS):
            seed = self._most + 1 + number
            answer = yield from self._compare(self._defaults, best, seed, self._check if number == 0 else [])
            if "failed" in answer:
                yield say(f"{told(best)}: {answer['failed']} when measured again: the defaults stay")
                return
            for name, pairs in answer["times"].items():
                rounds[name].append(tuple(statistics.median(side) for side in zip(*pairs, strict=True)))
        found = compare_times(rounds, CONFIDENCE)
        if found.p_faster <= 1 - CONFIDENCE:
            write(self._jail, self._task.output, render(self._source, best, self._name, plain=True))
            yield say(f"{told(best)}: {_speedup(found)}: kept")
        else:
            yield say(f"{told(best)}: {_speedup(found)}, not shown to be faster: the defaults stay")


def _speedup(found: Comparison) -> str:
    one = found.overall
    return (
        f"{one.ratio:.3f} times as fast as the defaults ({100 * found.confidence:g} % interval {one.low:.3f} to "
        f"{one.high:.3f}, {found.rounds} fresh processes, p = {found.p_faster:.2g})"
    )
