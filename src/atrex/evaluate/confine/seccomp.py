"""A system call filter for what files, users and namespaces do not cover, written out as the kernel takes it.

Refused: sockets (a candidate speaks to nobody), other processes' memory, tracing, mounts and namespaces, keys, BPF,
performance counters, io_uring (it opens sockets past a filter), System V shared memory (it outlives its process). The
filter's form is that of linux/filter.h and linux/seccomp.h; numbers are those of the two system call tables.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

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
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_MEMFD_CREATE = (319, 279)
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone knows
_AF_UNIX, _SOCK_TYPES, _SOCK_DGRAM = 1, 0xF, 2
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


def install(unix_sockets: bool, memory_files: bool, own_signals_only: bool) -> bool:
    """Put the filter on this process and all it starts; False where that cannot be done. Needs no_new_privs.

    `unix_sockets` leaves AF_UNIX sockets open (CUDA makes one), `memory_files` memfd_create. With `own_signals_only`
    a process can signal itself and nobody else, not even its children: for kernels whose Landlock knows no signals.
    """
    if MACHINE is None:
        return False
    program = _Program(MACHINE)
    for call in _REFUSED.values():
        program.refuse(call)
    program.only(_CLONE, 0, [0], _NEW_NAMESPACES)
    program.refuse(_CLONE3, errno.ENOSYS)  # its flags cannot be read here; libc falls back to clone
    program.only(_SOCKET, 0, [_AF_UNIX] if unix_sockets else [])
    if not unix_sockets:  # a pair of datagram sockets could be connected to any path
        program.unless(_SOCKETPAIR, 1, [_SOCK_DGRAM], _SOCK_TYPES)
    if not memory_files:
        program.refuse(_MEMFD_CREATE)
    if own_signals_only:
        me = os.getpid()
        program.only(_KILL, 0, [0, me, -me])
        program.only(_TGKILL, 0, [me])
        program.only(_SIGQUEUE, 0, [me])
        program.only(_TGSIGQUEUE, 0, [me])
        program.refuse(_TKILL)
        program.refuse(_PIDFD_SIGNAL)
        program.unless(_FCNTL, 1, [_F_SETOWN, _F_SETOWN_EX])
        program.unless(_IOCTL, 1, [_FIOSETOWN, _SIOCSPGRP])
    code = program.bytes()
    filter_ = _Filter(len(code) // 8, code)
    for flags in (_SPEC_ALLOW, 0):
        try:
            syscall(_SECCOMP[MACHINE], _SET_MODE_FILTER, flags, ctypes.byref(filter_))
            return True
        except OSError:
            continue
    return False
