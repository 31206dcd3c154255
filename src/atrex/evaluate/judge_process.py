"""The process of a judge that a `Pool` has. It imports what is heavy beside its zygote, which has to do the same."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from atrex.errors import UserError
from atrex.evaluate.spawn import Zygote

if TYPE_CHECKING:
    from atrex.evaluate.engine import Terms

_IDLE_SECONDS = 0.5  # after which a candidate's process is not kept for a unit that may come


def serve(connection: Connection, device: str, lease_path: str) -> None:
    """Terms in, then a unit's name in and its record out, until None or the end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to handle
    zygote = Zygote()
    try:
        terms: Terms = connection.recv()
    except BaseException:
        zygote.close()
        raise
    from atrex.evaluate.engine import judge_unit, measured, reuses
    from atrex.evaluate.lease import Lease
    from atrex.evaluate.setup import prepare
    from atrex.problems.load import load_suite

    try:
        lease = Lease(Path(lease_path))
        setup = prepare(
            device, terms.seeds, terms.seed_count, terms.budgets, terms.timed_calls, zygote, terms.hidden, lease
        )
    except UserError as error:
        connection.send(("error", str(error)))
        return
    suite = load_suite(terms.suite)
    setup.reuses = reuses(setup, terms)
    connection.send(("ready", measured(setup)))
    try:
        while True:
            if not connection.poll(_IDLE_SECONDS):
                setup.let_go()
            name = connection.recv()
            if name is None:
                break
            record = judge_unit(setup, name.unit(suite), terms)
            connection.send(record.model_dump_json())
    except (EOFError, OSError):
        pass  # the engine is gone
    finally:
        setup.close()
