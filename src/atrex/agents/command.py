"""`command:CMD`: any program. It starts in the workspace, finds the task in PROMPT.md, and leaves a candidate."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from atrex.agents.base import Choice, Need, Task, register
from atrex.agents.events import Ended, Event, Message, Output
from atrex.agents.jail import Jail, Terms
from atrex.errors import UserError


@register("command")
class Command:
    """Runs `CMD` in a jail. A program outside the system's folders is readable there with the folder it lies in."""

    keeps_usd = False

    def __init__(self, choice: Choice):
        argv = shlex.split(choice.argument)
        if not argv:
            raise UserError("--agent command: no program; expected command:CMD, such as 'command:./solve.sh'")
        path = shutil.which(argv[0])
        if path is None:
            raise UserError(f"--agent command: {argv[0]}: no such program")
        self._program = Path(path).absolute()
        # It starts in the workspace: files that are named from here get their whole path.
        self._words = [os.path.abspath(word) if os.path.isfile(word) else word for word in argv[1:]]
        self._hosts = [choice.base_url] if choice.base_url else []

    @classmethod
    def needs(cls) -> list[Need]:
        return [Need("a program of yours", True)]

    def terms(self, task: Task) -> Terms:
        own = [str(self._program), str(self._program.resolve())]
        own += [word for word in self._words if os.path.isfile(word)]
        return Terms(readable=own, hosts=self._hosts, device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return ()

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        yield Message(role="supervisor", text=task.prompt)
        yield from run(jail, [str(self._program), *self._words], _about(task), task.deadline)


def _about(task: Task) -> dict[str, str]:
    return {
        "ATREX_OPERATOR": task.operator,
        "ATREX_DSL": task.dsl,
        "ATREX_OUTPUT": task.output,
        "ATREX_ARCH": task.arch,
        "ATREX_SEED": str(task.seed),
    }


def run(jail: Jail, argv: list[str], env: dict[str, str], deadline: float) -> Iterator[Event]:
    """The events of a program that only prints; ended at the deadline."""
    jail.start(argv, env)
    try:
        for stream, line in jail.lines(deadline):
            yield Output(stream=stream, text=line)
        status = jail.wait()
    except TimeoutError:
        yield Ended(how="timeout")
        return
    finally:
        jail.stop()
    if jail.excess:
        yield Ended(how="error", reason=f"it {jail.excess}")
    else:
        yield Ended(how="done" if status == 0 else "error", reason=f"exit status {status}" if status else None)
