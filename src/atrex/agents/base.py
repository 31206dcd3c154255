"""What an agent must provide, and the registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol
from urllib.parse import urlsplit

from atrex.agents.events import Event
from atrex.agents.jail import Jail, Terms
from atrex.errors import UserError
from atrex.modules import import_all

Policy = Literal["default", "extended"]
_REGISTRY: dict[str, type[Agent]] = {}


@dataclass(frozen=True)
class Choice:
    """Which agent, as the user gave it: `claude`, `api:MODEL`, `command:CMD`, and what goes with it."""

    name: str
    argument: str = ""
    model: str | None = None
    base_url: str | None = None

    @classmethod
    def parse(cls, text: str, model: str | None = None, base_url: str | None = None) -> Choice:
        """Raises UserError for a base URL with more than scheme, host, port and path: it goes into the record."""
        name, _, argument = text.partition(":")
        parts = urlsplit(base_url or "")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UserError("--base-url: expected SCHEME://HOST[:PORT][/PATH], no password and no query")
        return cls(name, argument, model, base_url)

    def alone(self) -> Choice:
        """Itself, for an agent that takes nothing after its name. Raises UserError where something stands there."""
        if self.argument:
            raise UserError(f"--agent {self.name}:{self.argument}: expected {self.name} alone; --model names a model")
        return self


@dataclass(frozen=True)
class Task:
    """One problem for one agent: where it works, what it is told, until when (time.monotonic()), with which tools.

    `output` is the name of the file in the workspace that the agent must leave. `secrets` are values that must not
    appear in anything that is written. `device` "cpu" or "cuda" says what the target is, `arch` its architecture.
    `budget_usd` is what may be spent, for an agent that keeps to it itself.
    """

    operator: str
    dsl: str
    prompt: str
    deadline: float
    output: str = "candidate.py"
    policy: Policy = "default"
    device: str = "cpu"
    arch: str = ""
    seed: int = 0
    budget_usd: float | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Need:
    """Something that an agent needs: whether it is here, and how to get it."""

    what: str
    here: bool
    how: str = ""


class Agent(Protocol):
    """One agent. Made once for a run; `work` is called for every problem, from several threads.

    Raises UserError from its constructor for a choice that cannot work. One with `keeps_usd` counts dollars itself: it
    ends at `Task.budget_usd`, and yields a `Cost` at its end.
    """

    keeps_usd: bool

    def __init__(self, choice: Choice): ...

    @classmethod
    def needs(cls) -> list[Need]:
        """What must be installed or set for it to work."""

    def terms(self, task: Task) -> Terms:
        """What its jail grants it: its own files, and the hosts it speaks to."""

    def secrets(self) -> tuple[str, ...]:
        """Values, such as keys, that must never be written anywhere."""

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        """Solve the task in the jail. What it does is yielded as it happens; the last event is `Ended`.

        Closing the iterator stops it. Usage is told as soon as it is known, since budgets are kept by it.
        """


def register(name: str):
    """Class decorator: make an agent known under a name."""

    def add(cls: type[Agent]) -> type[Agent]:
        _REGISTRY[name] = cls
        return cls

    return add


def names() -> list[str]:
    """Known agents, sorted."""
    import_all("atrex.agents")
    return sorted(_REGISTRY)


def get(name: str) -> type[Agent]:
    """The class of an agent. Raises UserError for one that is not known."""
    import_all("atrex.agents")
    if name not in _REGISTRY:
        raise UserError(f"--agent {name}: unknown agent; expected one of {', '.join(names())}")
    return _REGISTRY[name]


def make(choice: Choice) -> Agent:
    """The agent of a choice. Raises UserError for one that is not known, not here, or cannot work as it is given."""
    found = get(choice.name)
    for need in found.needs():
        if not need.here:
            raise UserError(f"--agent {choice.name}: {need.what} is missing: {need.how}")
    return found(choice)
