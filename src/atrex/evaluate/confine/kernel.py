"""The few system calls that Python has no name for. Linux on x86-64 and aarch64."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
MACHINE = {"x86_64": 0, "aarch64": 1}.get(platform.machine())  # column of the tables of system call numbers

_MOUNT_SETATTR = 442  # the same number on both
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1


def _word(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def syscall(number: int, *arguments: Any) -> int:
    """A raw system call with integers and ctypes pointers. Raises OSError."""
    result = libc.syscall(ctypes.c_long(number), *map(_word, arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def prctl(option: int, *arguments: int) -> bool:
    """Whether prctl(2) with these arguments, the rest zero, succeeded."""
    return libc.prctl(option, *(ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4])) == 0


def unshare(flags: int) -> bool:
    """Whether this process could leave for new namespaces."""
    return libc.unshare(flags) == 0


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace")]


def set_read_only(path: str, read_only: bool, below: bool = False) -> None:
    """Make the mount at `path` read-only or not, with `below` also all mounts below it.

    Raises OSError, also before Linux 5.12.
    """
    attributes = _MountAttr(**{"set" if read_only else "clear": _MOUNT_ATTR_RDONLY})
    target = ctypes.c_char_p(os.fsencode(path))
    flags = _AT_RECURSIVE if below else 0
    syscall(_MOUNT_SETATTR, _AT_FDCWD, target, flags, ctypes.byref(attributes), ctypes.sizeof(attributes))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2). Raises OSError naming the target."""

    def text(value: str | None) -> bytes | None:
        return os.fsencode(value) if value is not None else None

    if libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), target)
