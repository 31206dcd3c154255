"""What holds a worker: today the process rules only; the file, network and user boundaries have their place here.

`enter()` runs in the worker right after the fork, before any candidate code, and returns what really holds, which
goes into every record as `confinement`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def _prctl(option: int, value: int) -> bool:
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


def enter(parent: int) -> dict[str, Any]:
    """Confine the calling process; `parent` is the zygote's pid. Raises SystemExit if the parent is gone already."""
    os.setsid()
    dies_with_parent = _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)
    no_new_privs = _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return {
        "process_group": True,
        "parent_death_signal": dies_with_parent,
        "no_new_privs": no_new_privs,
        "files": "unconfined",
        "network": "unconfined",
        "uid": os.getuid(),
    }
