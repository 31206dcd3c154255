"""How much a worker, with everything it starts, may take of the machine."""

from __future__ import annotations

import contextlib
import resource
import shutil
from dataclasses import dataclass

_MEMORY_SHARE = 0.6
_DISK_SHARE = 0.5
_DISK = 8 << 30
TASKS_PER_PROCESS = 4


@dataclass
class Limits:
    """`memory` and `disk` in bytes, `processes` and `files` counted, `output` in bytes that are read at full speed."""

    memory: int
    disk: int
    processes: int = 512
    files: int = 200_000
    output: int = 8 << 20

    @classmethod
    def of_this_machine(cls, scratch: str) -> Limits:
        import psutil  # by the judge only: the zygote loads this module before it has packages

        free = shutil.disk_usage(scratch).free
        return cls(int(psutil.virtual_memory().total * _MEMORY_SHARE), min(_DISK, int(free * _DISK_SHARE)))


def enter(limits: Limits, own_user: bool) -> None:
    """Set the limits that the kernel itself enforces on this process and what it starts.

    The process count holds for a user, so only where the workers have one of their own, and not for uid 0.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, limits.disk)
    if own_user:
        _lower(resource.RLIMIT_NPROC, limits.processes * TASKS_PER_PROCESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # where memory runs out before the watch sees it, the worker goes first


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
