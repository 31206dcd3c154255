"""The tuner in a campaign: a first kernel, then plan after plan that moves one knob of the incumbent.

The workspace is all it goes by: position.json says which step is wanted, kernel.py which values the knobs have,
memory.json what was tried, siblings.json what the iteration's other attempts plan. So it proposes again what a restart
has hidden from it, what was not selected, and once more what was left undecided.
"""

from __future__ import annotations

import ast
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.agents.base import Task
from atrex.agents.events import Ended, Event
from atrex.agents.jail import Jail
from atrex.agents.tuner.knobs import Knob, Value, find, render, values
from atrex.agents.tuner.measuring import BETTER, Measuring, percent, say, write
from atrex.agents.tuner.search import log_ratio
from atrex.errors import UserError

_SAYS_NOTHING = ("not_selected", "undecided")  # outcomes from which nothing follows about a value
_UNDECIDED = 2  # contests without a decision after which a value is let be
PATIENCE = 4  # iterations of a session without a promotion before it sees no direction
_PRIOR = 0.02  # of the log ratio of a knob that was never moved
_CARDS = 2
_CHANGE = re.compile(r"set (\w+) from (.+) to (.+)")
# What a knob is about, by its name: the first that is found in it.
_CATEGORIES = (
    ("per_thread|per_warp", "tiling"), ("vector|width", "vectorization"), ("unroll", "instruction"),
    ("prefetch|stage|depth|ahead", "prefetch"), ("stream|page|layout|pad", "layout"), ("split", "split_fusion"),
    ("threads|warps|programs", "launch"),
)  # fmt: skip


@dataclass(frozen=True)
class Move:
    """One knob from the value that it has to another; `steps` apart in the order of its options."""

    knob: str
    old: Value
    new: Value
    steps: int

    @property
    def text(self) -> str:
        return f"set {self.knob} from {self.old!r} to {self.new!r}"


def place(workspace: Path) -> dict[str, Any] | None:
    """Which step of a campaign a workspace belongs to, None for one that is of no campaign."""
    path = workspace / "position.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def step(
    at: dict[str, Any], task: Task, jail: Jail, trials: int, source: Callable[[], Path], plain: bool
) -> Iterator[Event]:
    """Take a step. A `plain` first kernel has the first value of every knob, else it is the source as it stands."""
    try:
        if at["step"] == "baseline":
            text = source().read_text(encoding="utf-8")
            first = {knob.name: knob.options[0] for knob in find(text)} if plain else {}
            write(jail, task.output, render(text, first))
            yield say("the first kernel" + (", every knob at its first value" if plain else " as it stands"))
        elif at["step"] == "plan":
            yield from _plan(at, task, jail, trials)
            return
        else:
            _edit(task, jail)
            yield say("the planned value is set")
    except (UserError, OSError, UnicodeDecodeError) as error:
        yield Ended(how="error", reason=str(error))
        return
    yield Ended(how="done")


def category(knob: str) -> str:
    """The category of an edit that moves a knob."""
    return next((found for words, found in _CATEGORIES if re.search(words, knob.lower())), "tiling")


def moved(change: str) -> tuple[str, Value] | None:
    """The knob and the value that a plan's text sets, None for a plan of somebody else."""
    found = _CHANGE.fullmatch(change)
    try:
        return (found[1], ast.literal_eval(found[3])) if found else None
    except (ValueError, SyntaxError):
        return None


def expected(memory: list[dict[str, Any]], knob: str) -> float:
    """The log ratio that a move of a knob may bring: the mean of its moves in memory and of one that brings 2 %."""
    told = [r for r in memory if r["change"] and r["outcome"] != "undecided"]
    ratios = [r["measured_ratio"] or 1.0 for r in told if (moved(r["change"]) or ("",))[0] == knob]
    return (_PRIOR + sum(map(math.log, ratios))) / (1 + len(ratios))


def moves(knobs: tuple[Knob, ...], memory: list[dict[str, Any]], seed: int) -> list[Move]:
    """What the memory shows no trial of, the most promising knob first, near values before far ones.

    What was undecided comes after all that was not contested yet.
    """
    told = [(moved(record["change"]), record["outcome"]) for record in memory if record["change"]]
    tried = {move for move, outcome in told if outcome not in _SAYS_NOTHING}
    undecided = Counter(move for move, outcome in told if outcome == "undecided")
    tried |= {move for move, times in undecided.items() if times >= _UNDECIDED}
    found = []
    for knob in knobs:
        at = knob.options.index(knob.value)
        found += [
            Move(knob.name, knob.value, value, abs(i - at))
            for i, value in enumerate(knob.options)
            if i != at and (knob.name, value) not in tried
        ]
    drawn = random.Random(seed)
    drawn.shuffle(found)
    order = [knob.name for knob in knobs]
    drawn.shuffle(order)
    return sorted(
        found,
        key=lambda m: (undecided[m.knob, m.new], -expected(memory, m.knob), order.index(m.knob), m.steps),
    )


def stuck(memory: list[dict[str, Any]], session: int) -> bool:
    """Whether the last iterations of this session were all without a promotion."""
    own = [record["outcome"] for record in memory if record["session"] == session]
    last = [outcome for outcome in own if outcome not in _SAYS_NOTHING][-PATIENCE:]
    return len(last) == PATIENCE and not {"promoted", "baseline"} & set(last)


def _plan(at: dict[str, Any], task: Task, jail: Jail, trials: int) -> Iterator[Event]:
    folder = jail.workspace
    memory = json.loads((folder / "memory.json").read_text(encoding="utf-8"))
    source = (folder / "kernel.py").read_text(encoding="utf-8")
    knobs = find(source, "kernel.py")
    left = moves(knobs, memory + planned(folder / "siblings.json", at["session"]), task.seed)
    cards = sorted(path.stem for path in (folder / "cards").glob("*.md"))
    why = None
    if not left:
        why = "every value of every knob was tried" if knobs else "the kernel has no knobs"
    elif stuck(memory, at["session"]):
        why = f"the last {PATIENCE} iterations brought nothing"
    elif not cards:
        why = "no card was opened that a plan could stand on"
    if why:
        _leave(jail, task, {"no_direction": why})
        yield say(why)
        yield Ended(how="done")
    elif trials and (task.device != "cuda" or jail.terms.device == "cuda"):
        yield from _Planning(task, jail, source, left, trials).run()
    else:
        gain = math.exp(expected(memory, left[0].knob))
        _leave(jail, task, _document(folder, left[0], gain, "the gain is a guess from the campaign's memory"))
        yield say(left[0].text)
        yield Ended(how="done")


def planned(path: Path, session: int) -> list[dict[str, Any]]:
    """What other attempts of the iteration are about, as if it had been tried and brought nothing."""
    plans = json.loads(path.read_text(encoding="utf-8")).values() if path.is_file() else ()
    about = {"measured_ratio": None, "outcome": "planned", "session": session}
    return [about | {"change": plan["change"]} for plan in plans]


class _Planning(Measuring):
    """Measures moves knob by knob, until one of a knob looks faster: that knob's best is the plan."""

    def __init__(self, task: Task, jail: Jail, source: str, left: list[Move], trials: int):
        super().__init__(task, jail, source, "kernel.py")
        self._left, self._trials = left, trials
        self._values = values(find(source))

    def _run(self) -> Iterator[Event]:
        self._start()
        if why := (yield from self._survey()):
            yield Ended(how="error", reason=why)
            return
        best: tuple[float, Move] | None = None
        tried = 0
        for move in self._left:
            if best and best[0] < BETTER and best[1].knob != move.knob:
                break
            if tried == self._trials or not self._clock.allows(1):
                break
            tried += 1
            answer = yield from self._compare({}, {move.knob: move.new}, tried, self._check)
            if "failed" in answer:
                yield say(f"{move.text}: {answer['failed']}: {answer['reason']}")
                continue
            ratio = log_ratio(answer["times"])
            yield say(f"{move.text}: {percent(ratio)} of the incumbent's time")
            if best is None or ratio < best[0]:
                best = (ratio, move)
        if best is None or best[0] >= BETTER:
            found = {"no_direction": f"none of {tried} values that were measured looked faster"}
        else:
            risks = (
                f"measured in the jail on {len(self._shapes)} shapes, once: the best of several looks better than it is"
            )
            found = _document(self._jail.workspace, best[1], math.exp(-best[0]), risks)
        _leave(self._jail, self._task, found)
        yield say(found.get("change") or found["no_direction"])
        yield Ended(how="done")


def _document(folder: Path, move: Move, gain: float, risks: str) -> dict[str, Any]:
    evidence = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
    about = category(move.knob)
    return {
        "bottleneck": evidence["bottleneck"], "category": about, "change": move.text,
        "cards": _cards(folder / "cards", about), "gain": round(gain, 4), "risks": risks,
    }  # fmt: skip


def _cards(folder: Path, about: str) -> list[str]:
    """Of the opened cards, those that speak most of a category."""
    word = re.compile(rf"{about[:6]}", re.I)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(texts, key=lambda card: (-len(word.findall(texts[card])), card))[:_CARDS]


def _edit(task: Task, jail: Jail) -> None:
    plan = json.loads((jail.workspace / "plan.json").read_text(encoding="utf-8"))
    move = moved(plan["change"])
    if move is None:
        raise UserError(f"plan.json: change: {plan['change']!r}; expected 'set KNOB from VALUE to VALUE'")
    source = (jail.workspace / "kernel.py").read_text(encoding="utf-8")
    write(jail, task.output, render(source, dict([move]), "kernel.py"))


def _leave(jail: Jail, task: Task, document: dict[str, Any]) -> None:
    write(jail, task.output, json.dumps(document, indent=1) + "\n")
