"""Who a worker is: another user where that user can run it, and no capabilities in any case."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from atrex.evaluate.confine.kernel import libc, prctl

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT = 4, 24, 28, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
# linux/securebits.h: uid 0 gets nothing at execve, nothing is kept over a change of user, all of it locked.
_SECUREBITS = 0b11101111
_MAY_RAISE_AMBIENT = 0b01000000  # the bit that would refuse it
_CAPABILITIES_VERSION_3 = 0x20080522
_CAP_KILL, _CAP_SETGID, _CAP_SETUID = 5, 6, 7
_CAP_CHOWN, _CAP_DAC_OVERRIDE = 0, 1
_DYNAMIC_USERS = range(61184, 65520)  # set aside for short-lived users (systemd, UIDS-GIDS)


def _status(field: str) -> str:
    with open("/proc/self/status") as status:
        return next((line.split(":", 1)[1].strip() for line in status if line.startswith(field + ":")), "")


def capabilities() -> int:
    """The bit set of capabilities that this process, or a program it starts, could use."""
    return int(_status("CapPrm") or "0", 16) | int(_status("CapEff") or "0", 16) | int(_status("CapAmb") or "0", 16)


def spare_uid(needed: Iterable[str]) -> int | None:
    """A user id that this process can take on and that can read all `needed` files; None if there is none."""
    wanted = (_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_KILL, _CAP_SETGID, _CAP_SETUID)
    held = capabilities()
    if os.geteuid() != 0 or not all(held >> bit & 1 for bit in wanted):
        return None
    uid = _DYNAMIC_USERS[os.getpid() % len(_DYNAMIC_USERS)]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            become(uid)
            for path in needed:
                os.close(os.open(path, os.O_RDONLY))
            status = 0
        finally:
            os._exit(status)
    return uid if os.waitpid(pid, 0)[1] == 0 else None


def show_process(shown: bool) -> None:
    """Whether processes of the same user may look into this one: trace it, or open its /proc/PID/mem and environ."""
    prctl(_PR_SET_DUMPABLE, int(shown))


def become(uid: int) -> None:
    """Take on a user and group id, with no other group. Raises OSError."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop(uid: int | None, kept: Iterable[int] = ()) -> bool:
    """Give up every capability for good, after taking on `uid` if there is one. Whether none is left.

    Those `kept` that this process has stay, with the programs that it starts too; they go with a change of user.
    """
    held = capabilities()
    kept = [number for number in kept if held >> number & 1 and number < 32 and uid is None]
    number = 0
    while number in kept or prctl(_PR_CAPBSET_DROP, number):
        number += 1
    prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    prctl(_PR_SET_SECUREBITS, _SECUREBITS & ~_MAY_RAISE_AMBIENT if kept else _SECUREBITS)
    if uid is not None:
        become(uid)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0))
    mask = sum(1 << each for each in kept)  # effective, permitted, inheritable; the second half is for numbers over 31
    libc.capset(header, ctypes.create_string_buffer(struct.pack("=6I", mask, mask, mask, 0, 0, 0)))
    for each in kept:
        prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, each)
    show_process(True)  # a change of user has hidden /proc/self from its owner, and CUDA writes there
    return capabilities() == 0
