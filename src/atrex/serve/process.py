"""One judge of the service: a child process with a prepared set-up and its zygote, which outlives many requests.

It is a process of its own so that nothing of the service runs beside its clock, and so that it can be ended: by a
request that has used up its time, and by itself when its zygote is gone, for then a verdict would blame the candidate.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.channel import ChannelClosed, ChannelTimeout
from atrex.evaluate.confine.homes import remove
from atrex.evaluate.engine import Terms, UnitName, judge_unit, measured
from atrex.scoring.records import UnitRecord

_START_SECONDS = 180.0
_CONTEXT = multiprocessing.get_context("spawn")  # a fork of a process with a device is not usable


class JudgeLost(Exception):
    """The judge ended without a record."""


class OutOfTime(Exception):
    """There was no record in time; the judge was ended."""


class JudgeProcess:
    """Started by the constructor, which returns when it is ready or raises UserError."""

    def __init__(self, device: str, terms: Terms):
        self.device = device
        self._scratch: Path | None = None
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, device), daemon=False)
        self._process.start()
        theirs.close()
        try:
            self._connection.send(terms)
            if not self._connection.poll(_START_SECONDS):
                raise UserError(f"a judge on {device} did not start within {_START_SECONDS:g} s")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            self.kill()
            raise UserError(f"a judge on {device} ended while it started") from None
        except BaseException:
            self.kill()
            raise
        if kind == "error":
            self.kill()
            raise UserError(value)
        self.measured: dict[str, Any] = value["measured"]
        self._scratch = Path(value["scratch"])

    def judge(self, name: UnitName, terms: Terms, seconds: float) -> UnitRecord:
        """The unit's record. Raises JudgeLost, or OutOfTime after `seconds`; this judge is of no use then."""
        try:
            self._connection.send((terms, name))
            if not self._connection.poll(max(0.0, seconds)):
                self.kill()
                raise OutOfTime
            return UnitRecord.model_validate_json(self._connection.recv())
        except (EOFError, OSError):
            self.kill()
            raise JudgeLost(f"exit code {self._process.exitcode}") from None

    def forget(self) -> None:
        """What candidates have left behind is removed: a later request finds nothing of an earlier one."""
        with contextlib.suppress(OSError):
            self._connection.send("forget")

    def close(self) -> None:
        """Let it end by itself, with its zygote and folders."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(10)
        self.kill()

    def kill(self) -> None:
        """End it now; its zygote ends when it sees that. Safe to call again."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._connection.close()
        if self._scratch is not None:
            remove(self._scratch)  # it had no time to do that itself


def _serve(connection: Connection, device: str) -> None:
    """Terms in; then (terms of the request, a unit's name) in and its record out, until None or the pipe's end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and SIGTERM are the service's to handle
    from atrex.evaluate.setup import prepare
    from atrex.problems.load import load_suite

    terms: Terms = connection.recv()
    try:
        setup = prepare(device, terms.seeds, terms.seed_count, terms.budgets, hidden=terms.hidden)
        suite = load_suite(terms.suite)
    except UserError as error:
        connection.send(("error", str(error)))
        return
    connection.send(("ready", {"measured": measured(setup), "scratch": str(setup.zygote.homes.root)}))
    try:
        while (order := connection.recv()) is not None:
            if order == "forget":
                setup.zygote.homes.forget()
                continue
            terms, name = order
            setup.seeds, setup.seed_count = terms.seeds, terms.seed_count
            setup.budgets, setup.timed_calls = terms.budgets, terms.timed_calls
            record = judge_unit(setup, name.unit(suite), terms)
            if not setup.zygote.alive:
                return
            connection.send(record.model_dump_json())
    except (EOFError, OSError, ChannelClosed, ChannelTimeout):
        pass  # the service is gone, or the zygote
    finally:
        setup.close()
