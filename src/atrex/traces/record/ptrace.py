"""The part of ptrace(2) that stops one thread, calls a function in it and leaves. Linux on x86-64.

The thread is seized, not attached: no signal is sent to it, and when this thread of ours ends, by whatever cause, the
kernel lets the other go on from the registers it has then. PTRACE_O_EXITKILL is never set.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass

_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
_GETSIGMASK, _SETSIGMASK, _GET_RSEQ = 0x420A, 0x420B, 0x420F
_TRACESYSGOOD = 1
_PRSTATUS, _XSTATE = 1, 0x202
_EVENT_STOP = 128
_WALL, _NOT_OTHER_THREADS = 0x40000000, 0x20000000

REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip


class Registers(ctypes.Structure):
    """struct user_regs_struct."""

    _fields_ = [(name, ctypes.c_uint64) for name in REGISTERS]

    def copy(self) -> Registers:
        return Registers.from_buffer_copy(self)

    @property
    def in_syscall(self) -> bool:
        """Whether the stop interrupted a system call: its number is still kept."""
        return ctypes.c_int64(self.orig_rax).value >= 0

    @property
    def result(self) -> int:
        """rax as a signed number: what a system call returned."""
        return ctypes.c_int64(self.rax).value


@dataclass(frozen=True)
class Stop:
    """Why a thread stopped: at a system call, by our interrupt, or for a signal that waits to be delivered."""

    syscall: bool = False
    interrupted: bool = False
    signal: int = 0
    group: bool = False


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Rseq(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_uint64), ("size", ctypes.c_uint32), ("signature", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("pad", ctypes.c_uint32)]  # fmt: skip


_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Tracee:
    """One thread under ptrace. All calls must come from the same thread of ours. Raises OSError as ptrace does."""

    def __init__(self, tid: int) -> None:
        self.tid = tid

    def _call(self, request: int, address: int = 0, data: int = 0) -> None:
        if _ptrace(request, self.tid, address, data) < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"{os.strerror(error)} (ptrace {request:#x} of {self.tid})")

    def seize(self) -> None:
        self._call(_SEIZE, 0, _TRACESYSGOOD)

    def interrupt(self) -> None:
        self._call(_INTERRUPT)

    def resume(self, to_syscall: bool, deliver: int = 0) -> None:
        self._call(_SYSCALL if to_syscall else _CONT, 0, deliver)

    def detach(self, deliver: int = 0) -> None:
        self._call(_DETACH, 0, deliver)

    def wait(self, seconds: float) -> Stop | None:
        """The next stop, or None when there was none in time. An exit is left for the parent to see."""
        deadline, tries = time.monotonic() + seconds, 0
        while True:
            found = os.waitid(os.P_PID, self.tid, os.WSTOPPED | os.WNOHANG | _WALL | _NOT_OTHER_THREADS)
            if found is not None:
                return self._stop(found.si_status)
            if time.monotonic() > deadline:
                return None
            tries += 1
            if tries > 20:
                time.sleep(20e-6 if tries < 200 else 1e-3)

    @staticmethod
    def _stop(status: int) -> Stop:
        number, event = status & 0xFF, status >> 8
        if event == _EVENT_STOP:
            return Stop(interrupted=True, group=number != signal.SIGTRAP)
        if number == signal.SIGTRAP | 0x80:
            return Stop(syscall=True)
        return Stop(signal=number)

    def registers(self) -> Registers:
        found = Registers()
        vector = _Vector(ctypes.addressof(found), ctypes.sizeof(found))
        self._call(_GETREGSET, _PRSTATUS, ctypes.addressof(vector))
        return found

    def set_registers(self, registers: Registers) -> None:
        """All of them at once: whenever we die, the thread has the old ones or the new ones."""
        vector = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
        self._call(_SETREGSET, _PRSTATUS, ctypes.addressof(vector))

    def xstate(self) -> bytes:
        """The state of the floating-point and vector units, in the layout of XSAVE."""
        buffer = ctypes.create_string_buffer(1 << 15)
        vector = _Vector(ctypes.addressof(buffer), len(buffer))
        self._call(_GETREGSET, _XSTATE, ctypes.addressof(vector))
        return buffer.raw[: vector.length]

    def set_xstate(self, content: bytes) -> None:
        buffer = ctypes.create_string_buffer(content, len(content))
        vector = _Vector(ctypes.addressof(buffer), len(content))
        self._call(_SETREGSET, _XSTATE, ctypes.addressof(vector))

    def signal_mask(self) -> int:
        mask = ctypes.c_uint64()
        self._call(_GETSIGMASK, 8, ctypes.addressof(mask))
        return mask.value

    def set_signal_mask(self, mask: int) -> None:
        value = ctypes.c_uint64(mask)
        self._call(_SETSIGMASK, 8, ctypes.addressof(value))

    def rseq(self) -> int:
        """Address of the thread's restartable-sequence area; 0 where there is none or the kernel does not tell."""
        found = _Rseq()
        try:
            self._call(_GET_RSEQ, ctypes.sizeof(found), ctypes.addressof(found))
        except OSError:
            return 0
        return found.pointer
