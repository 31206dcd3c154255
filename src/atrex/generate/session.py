"""An agent at work on one task: its events go into the account and the transcript, and it ends when it must."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from atrex.agents.base import Agent, Task
from atrex.agents.events import Asked, Ended
from atrex.agents.jail import Jail, JailError, NoJail
from atrex.errors import UserError
from atrex.generate.accounting import Account
from atrex.generate.transcript import Redactor, Transcript
from atrex.generate.workspace import NoCandidate, collect


def attend(
    agent: Agent, task: Task, jail: Jail, account: Account, transcript: Transcript,
    stopping: Callable[[], bool] = lambda: False,
) -> Ended:  # fmt: skip
    """Follow an agent until it ends, or its budget, its time or the run does. It is stopped in any case.

    Raises UserError where no jail can be made for it: that is this machine's fault, and no result of the agent's.
    """
    asks = _Asks(jail, account, transcript)
    try:
        with contextlib.closing(agent.work(task, jail)) as events:
            for event in events:
                if isinstance(event, Ended):
                    return event
                account.add(event)
                transcript.add(event)
                asks.note()
                if stopping():
                    return Ended(how="error", reason="interrupted")
                if spent := account.over():
                    return Ended(how="budget", reason=spent)
                if time.monotonic() > task.deadline:
                    return Ended(how="timeout")
        return Ended(how="error", reason="the agent stopped without saying how it ended")
    except NoJail as error:
        raise UserError(f"the agent cannot be confined here: {error}") from None
    except (JailError, OSError) as error:
        return Ended(how="error", reason=str(error))
    finally:
        asks.note()


class _Asks:
    """What is asked of a jail's network goes into the account and the transcript as it happens."""

    def __init__(self, jail: Jail, account: Account, transcript: Transcript):
        self._jail, self._account, self._transcript, self._noted = jail, account, transcript, 0

    def note(self) -> None:
        new = self._jail.asked[self._noted :]
        self._noted += len(new)
        for ask in new:
            event = Asked(**{name: getattr(ask, name) for name in Asked.model_fields if name != "kind"})
            self._account.add(event)
            self._transcript.add(event)


def take(root: Path, output: str, ended: Ended, redactor: Redactor) -> str:
    """The file that an agent has left. Raises NoCandidate, also when it holds a secret."""
    try:
        found = collect(root, output)
    except NoCandidate as error:
        raise NoCandidate(f"{error}{f'; {ended.reason}' if ended.reason else ''}") from None
    if redactor.found(found):
        raise NoCandidate(f"{output} holds a secret of this machine")
    return found
