"""The processes that descend from one, found in /proc, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

_PATIENCE = 5.0  # seconds for killed processes to be gone


def children(pid: int) -> list[int]:
    """Pids of the children that any thread of `pid` has, dead ones that nobody has waited for included."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def descendants(pids: Iterable[int]) -> list[int]:
    """`pids` and all below them, parents first."""
    found, waiting = [], list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children(pid)
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def end(pids: Iterable[int]) -> None:
    """SIGKILL processes with all below them. Stopped first, until no new ones appear: a fork bomb outruns SIGKILL."""
    roots = list(pids)
    stopped: set[int] = set()
    while new := set(descendants(roots)) - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_adopted(known: Iterable[int]) -> int:
    """Kill and reap what has become a child of this process without being one of its `known` ones; how many.

    This process has to be a subreaper: then whatever a dead child leaves behind comes here.
    """
    known, gone = set(known), 0
    deadline = time.monotonic() + _PATIENCE
    while (left := [pid for pid in children(os.getpid()) if pid not in known]) and time.monotonic() < deadline:
        end(left)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < deadline:
                    time.sleep(0.001)
                gone += 1
    return gone
