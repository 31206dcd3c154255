"""What this kernel and user allow for confining untrusted code. Asks, and changes nothing in this process."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

_SYS_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture (Linux syscall table)
_LANDLOCK_CREATE_RULESET_VERSION = 1
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CLONE_NEWPID = 0x20000000


def landlock_abi() -> int | None:
    """The Landlock ABI version of this kernel (Linux documentation, userspace-api/landlock), None without Landlock."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    size, flags = ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_CREATE_RULESET_VERSION)
    version = libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, size, flags)
    return version if version > 0 else None


def can_unshare(flags: int) -> str | None:
    """None when a child of this process can enter new namespaces (CLONE_* flags), else the reason."""
    if not sys.platform.startswith("linux"):
        return "not Linux"

    def child() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        return 0 if libc.unshare(flags) == 0 else ctypes.get_errno()

    error = _in_child(child)
    return None if error == 0 else os.strerror(error)


def can_set_no_new_privs() -> bool:
    """Whether a child can give up gaining privileges through execve (prctl PR_SET_NO_NEW_PRIVS)."""
    if not sys.platform.startswith("linux"):
        return False
    return _in_child(lambda: 0 if ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0 else 1) == 0


def _in_child(work: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
