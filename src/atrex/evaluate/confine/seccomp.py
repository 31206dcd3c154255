"""A system call filter for what files, users and namespaces do not cover, written out as the kernel takes it.

Refused: sockets (a candidate speaks to nobody), other processes' memory, tracing, mounts and namespaces, keys, BPF,
performance counters, io_uring (it opens sockets past a filter), System V shared memory (it outlives its process). For
a worker that runs as the judge's user also what no file right covers: modes and attributes of that user's files, the
limits and scheduling of its processes. The filter's form is that of linux/filter.h and linux/seccomp.h; numbers are
those of the two system call tables.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from atrex.evaluate.confine.kernel import MACHINE, syscall

_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_SECCOMP = (317, 277)
_SET_MODE_FILTER = 1
_SPEC_ALLOW = 4  # without it older kernels switch off speculation for the candidate, and its times are not its own
_X32 = 0x40000000

# name: (x86-64, aarch64); -1 where there is none
_REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "syslog": (103, 116), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_MEMFD_CREATE, _TRUNCATE = (319, 279), (76, 45)
# Answered with success and not done: build tools set modes that nothing here depends on.
_MODES = {
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
}  # fmt: skip
_ATTRIBUTES = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
# With the argument that says whose; 0 is the caller.
_PRLIMIT, _SETPRIORITY, _IOPRIO_SET = (302, 261), (141, 140), (251, 30)
_SCHEDULER = {"sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274)}
_SCHED_SETAFFINITY = (203, 122)
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone knows
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_TYPES, _SOCK_DGRAM = 1, 2, 10, 0xF, 2
# Ways to send a signal, with the argument that says to whom; and to have one sent: fcntl, ioctl.
_KILL, _TGKILL, _TKILL = (62, 129), (234, 131), (200, 130)
_SIGQUEUE, _TGSIGQUEUE, _PIDFD_SIGNAL = (129, 138), (297, 240), (424, 424)
_FCNTL, _IOCTL = (72, 25), (16, 29)
_F_SETOWN, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 15, 0x8901, 0x8902

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH = 0, 4


def _argument(index: int) -> int:
    return 16 + 8 * index  # the low word: what these calls read is 32 bits wide, on two little-endian machines


class _Program:
    """Instructions (code, jump if true, jump if false, value)."""

    def __init__(self, column: int):
        self.column = column
        self.code: list[tuple[int, int, int, int]] = [
            (_LOAD, 0, 0, _ARCH),
            (_EQUAL, 1, 0, _AUDIT_ARCH[column]),
            self._refuse(errno.ENOSYS),  # another architecture's calls have other numbers
            (_LOAD, 0, 0, _NUMBER),
        ]
        if column == 0:
            self.code += [(_AT_LEAST, 0, 1, _X32), self._refuse(errno.ENOSYS)]

    @staticmethod
    def _refuse(error: int = errno.EPERM) -> tuple[int, int, int, int]:
        return (_RETURN, 0, 0, _ERRNO | error)

    def _on(self, call: tuple[int, int], body: list[tuple[int, int, int, int]]) -> None:
        number = call[self.column]
        if number >= 0:
            self.code += [(_EQUAL, 0, len(body), number), *body]

    def refuse(self, call: tuple[int, int], error: int = errno.EPERM) -> None:
        self._on(call, [self._refuse(error)])

    def only(self, call: tuple[int, int], index: int, values: list[int], mask: int = 0xFFFFFFFF) -> None:
        """Allow the call only if an argument, under a mask, is one of these."""
        tests = [(_EQUAL, len(values) - i, 0, v & 0xFFFFFFFF) for i, v in enumerate(values)]
        self._on(call, [*self._load(index, mask), *tests, self._refuse(), (_RETURN, 0, 0, _ALLOW)])

    def unless(self, call: tuple[int, int], index: int, values: list[int], mask: int = 0xFFFFFFFF) -> None:
        """Refuse the call if an argument, under a mask, is one of these."""
        tests = [(_EQUAL, len(values) - i, 0, v & 0xFFFFFFFF) for i, v in enumerate(values)]
        self._on(call, [*self._load(index, mask), *tests, (_RETURN, 0, 0, _ALLOW), self._refuse()])

    def _load(self, index: int, mask: int) -> list[tuple[int, int, int, int]]:
        return [(_LOAD, 0, 0, _argument(index)), *([(_AND, 0, 0, mask)] if mask != 0xFFFFFFFF else [])]

    def bytes(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *line) for line in [*self.code, (_RETURN, 0, 0, _ALLOW)])


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


@dataclass(frozen=True)
class Leave:
    """What a filter leaves open.

    `unix_sockets`: AF_UNIX sockets (a GPU's driver makes one). `inet_sockets`: those of a network. `memory_files`:
    memfd_create. `signals`: to other processes; without it a process signals itself and nobody else, not even its
    children. `modes`: changes of modes, owners and extended attributes. `truncate`: by path. `protected` are processes
    of the same user whose limits and scheduling are to stay as they are; empty where the user is another.
    """

    unix_sockets: bool = False
    inet_sockets: bool = False
    memory_files: bool = True
    signals: bool = True
    modes: bool = True
    truncate: bool = True
    protected: Sequence[int] = ()


def install(leave: Leave) -> bool:
    """Put the filter on this process and all it starts; False where that cannot be done. Needs no_new_privs."""
    if MACHINE is None:
        return False
    code = _program(leave, MACHINE).bytes()
    program = _Filter(len(code) // 8, code)
    for flags in (_SPEC_ALLOW, 0):
        try:
            syscall(_SECCOMP[MACHINE], _SET_MODE_FILTER, flags, ctypes.byref(program))
            return True
        except OSError:
            continue
    return False


def _program(leave: Leave, column: int) -> _Program:
    program = _Program(column)
    for call in _REFUSED.values():
        program.refuse(call)
    program.only(_CLONE, 0, [0], _NEW_NAMESPACES)
    program.refuse(_CLONE3, errno.ENOSYS)  # its flags cannot be read here; libc falls back to clone
    families = [_AF_UNIX] * leave.unix_sockets + [_AF_INET, _AF_INET6] * leave.inet_sockets
    program.only(_SOCKET, 0, families)
    if not leave.unix_sockets:  # a pair of datagram sockets could be connected to any path
        program.unless(_SOCKETPAIR, 1, [_SOCK_DGRAM], _SOCK_TYPES)
    if not leave.memory_files:
        program.refuse(_MEMFD_CREATE)
    if not leave.truncate:
        program.refuse(_TRUNCATE)
    if not leave.modes:
        for call in _MODES.values():
            program.refuse(call, 0)
        for call in _ATTRIBUTES.values():
            program.refuse(call, errno.EOPNOTSUPP)
    if not leave.signals:
        _only_own_signals(program)
    if leave.protected:
        for call in _SCHEDULER.values():
            program.only(call, 0, [0, os.getpid()])
        program.only(_PRLIMIT, 0, [0, os.getpid()])
        program.only(_SETPRIORITY, 1, [0, os.getpid()])
        program.only(_IOPRIO_SET, 1, [0, os.getpid()])
        program.unless(_SCHED_SETAFFINITY, 0, list(leave.protected))  # OpenMP sets it for its threads, by their ids
    return program


def _only_own_signals(program: _Program) -> None:
    me = os.getpid()
    program.only(_KILL, 0, [0, me, -me])
    for call in (_TGKILL, _SIGQUEUE, _TGSIGQUEUE):
        program.only(call, 0, [me])
    program.refuse(_TKILL)
    program.refuse(_PIDFD_SIGNAL)
    program.unless(_FCNTL, 1, [_F_SETOWN, _F_SETOWN_EX])
    program.unless(_IOCTL, 1, [_FIOSETOWN, _SIOCSPGRP])
