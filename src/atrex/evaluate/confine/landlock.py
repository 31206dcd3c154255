"""Landlock: a process gives up, for itself and all it starts, every file access that is not granted below a path.

Constants and structures are those of linux/landlock.h; what each version of the interface adds is in the kernel's
documentation (userspace-api/landlock). Beside files: TCP from version 4, abstract Unix sockets and signals to
processes outside from version 6. In every version a confined process is refused ptrace, and what /proc guards like it
(environ, mem, fd of a process), of any process that is not confined at least as far.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import stat
from enum import IntFlag

from atrex.evaluate.confine.kernel import syscall
from atrex.hardware.sandbox import landlock_abi

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2
_TCP_BIND, _TCP_CONNECT = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2


class Access(IntFlag):
    """Rights on files and folders (LANDLOCK_ACCESS_FS_*)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ = Access.READ_FILE | Access.READ_DIR | Access.EXECUTE
LIST = Access.READ_DIR
WRITE = Access.WRITE_FILE | Access.TRUNCATE
ALL = Access((1 << 16) - 1)
_OF_A_FILE = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV


def _handled(abi: int) -> Access:
    known = ALL
    for since, right in ((2, Access.REFER), (3, Access.TRUNCATE), (5, Access.IOCTL_DEV)):
        if abi < since:
            known &= ~right
    return known


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


class _NetPortAttr(ctypes.Structure):
    _fields_ = [("access", ctypes.c_uint64), ("port", ctypes.c_uint64)]


class Ruleset:
    """What a process keeps. `at_most` plays an older kernel. Raises OSError where there is no Landlock."""

    def __init__(self, at_most: int | None = None):
        abi = landlock_abi()
        if abi is None or at_most == 0:
            raise OSError("no Landlock in this kernel")
        self.abi = abi if at_most is None else min(abi, at_most)
        self._rights = _handled(self.abi)
        attributes = _RulesetAttr(fs=self._rights)
        size = 8
        if self.abi >= 4:
            attributes.net, size = _TCP_BIND | _TCP_CONNECT, 16
        if self.abi >= 6:
            attributes.scoped, size = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL, 24
        self._fd = syscall(_CREATE, ctypes.byref(attributes), size, 0)

    @property
    def refuses_tcp(self) -> bool:
        return self.abi >= 4

    @property
    def allows_moves(self) -> bool:
        """Whether files can be moved from one granted folder to another."""
        return self.abi >= 2

    @property
    def refuses_truncation(self) -> bool:
        """Whether truncating by path, without opening for writing, is refused."""
        return self.abi >= 3

    @property
    def refuses_signals(self) -> bool:
        """Whether signals to processes outside, and their abstract sockets, are refused."""
        return self.abi >= 6

    def allow(self, path: str, access: Access) -> bool:
        """Grant rights at and below a path, following a link. False if there is nothing."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                access &= self._rights
                if not stat.S_ISDIR(os.fstat(fd).st_mode):
                    access &= _OF_A_FILE
                rule = _PathBeneathAttr(access, fd)
                syscall(_ADD_RULE, self._fd, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
                return True
            finally:
                os.close(fd)
        return False

    def allow_connect(self, port: int) -> None:
        """Let TCP connections to a port, of any host, through; before version 4 they all are."""
        self._allow_port(_TCP_CONNECT, port)

    def allow_listen(self, port: int) -> None:
        """Let a TCP port be bound; before version 4 all may be."""
        self._allow_port(_TCP_BIND, port)

    def _allow_port(self, what: int, port: int) -> None:
        if self.refuses_tcp:
            rule = _NetPortAttr(what, port)
            syscall(_ADD_RULE, self._fd, _RULE_NET_PORT, ctypes.byref(rule), 0)

    def restrict(self) -> None:
        """Confine this thread and whatever it starts, for good; needs no_new_privs. Raises OSError."""
        syscall(_RESTRICT, self._fd, 0)
        os.close(self._fd)


def copy_instead_of_moving() -> None:
    """Let os.replace copy where the first Landlock refuses every move between folders; Triton's cache needs it."""
    move = os.replace

    @functools.wraps(move)
    def replace(source, target, **options):
        try:
            move(source, target, **options)
        except OSError as error:
            if error.errno != errno.EXDEV or options:
                raise
            beside = f"{os.fspath(target)}.{os.getpid()}"
            shutil.copyfile(source, beside)
            move(beside, target)
            os.unlink(source)

    os.replace = replace
