"""`manual`: a person is the agent. The workspace is laid out, and the command waits until the candidate lies there."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator

from atrex.agents.base import Choice, Need, Task, register
from atrex.agents.events import Ended, Event, Message
from atrex.agents.jail import Jail, Terms

_LOOK_EVERY = 0.5
_STILL_FOR = 2.0  # seconds without a change before a file counts as written


@register("manual")
class Manual:
    """Waits for the output file and takes it once it has stopped changing. No confinement: a person works outside."""

    keeps_usd = False

    def __init__(self, choice: Choice):
        choice.alone()

    @classmethod
    def needs(cls) -> list[Need]:
        return [Need("a person", True)]

    def terms(self, task: Task) -> Terms:
        return Terms(device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return ()

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        yield Message(role="supervisor", text=f"{task.prompt}\n\nWork in {jail.workspace}.")
        file = jail.workspace / task.output
        minutes = max(0.0, task.deadline - time.monotonic()) / 60
        print(f"{task.operator}: read {file.parent / 'PROMPT.md'}, leave {file}, in {minutes:.0f} min", file=sys.stderr)
        seen, since = "", time.monotonic()
        while time.monotonic() < task.deadline:
            try:
                now = hashlib.sha256(file.read_bytes()).hexdigest()
            except OSError:
                now = ""
            if now != seen:
                seen, since = now, time.monotonic()
            if seen and time.monotonic() - since > _STILL_FOR:
                yield Ended(how="done")
                return
            time.sleep(_LOOK_EVERY)
        yield Ended(how="timeout")
