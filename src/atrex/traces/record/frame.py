"""A signal frame made by hand: what lets a thread that was sent elsewhere find back by itself.

A function that returns into the C library's `__restore_rt` makes the kernel load every register, the vector state and
the signal mask from the frame above the return address: that is how every signal handler ends. A thread whose registers
are set to such a call needs nobody to put it back. Layout: the Linux kernel's `struct rt_sigframe` for x86-64.
"""

from __future__ import annotations

import struct

from atrex.traces.record.ptrace import Registers

RED_ZONE = 128  # bytes under the stack pointer that a leaf function may use (System V ABI for x86-64)
SIZE = 440  # pretcode, ucontext and siginfo
_UC_MCONTEXT, _UC_SIGMASK = 48, 304
_SAVED = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx",
          "rsp", "rip", "eflags")  # fmt: skip
_UC_FP_XSTATE, _UC_SIGCONTEXT_SS, _UC_STRICT_RESTORE_SS = 1, 2, 4
_KEEP_SIGNAL_STACK = 7  # no valid mode: the kernel then leaves the alternate signal stack as it is
_MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
_SOFTWARE, _HEADER, _LEGACY_END = 464, 512, 576
_TILES = (1 << 17) | (1 << 18)
# Ends of the parts of XSAVE's standard layout where a CPU has tiles (Intel SDM volume 1, 13.4; CPUID leaf 0xD).
_ENDS = {2: 832, 5: 1152, 6: 1664, 7: 2688, 9: 2696, 17: 2816, 18: 11008}

RESTARTS = (-512, -513, -514, -516)  # ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK
_SYSCALL_LENGTH = 2


def resumable(registers: Registers) -> Registers:
    """The registers with which user code goes on: an interrupted system call is made again, as the kernel would.

    One with a relative timeout (ERESTART_RESTARTBLOCK) begins its timeout anew: what is left of it only the kernel
    knows.
    """
    found = registers.copy()
    if found.in_syscall and found.result in RESTARTS:
        found.rax = found.orig_rax
        found.rip -= _SYSCALL_LENGTH
    return found


def xstate_for_frame(xstate: bytes) -> bytes:
    """What PTRACE_GETREGSET gave, as a signal frame holds it: the size and the parts named, and a mark behind.

    The kernel takes no frame that is larger than the thread's own state, and tiles count only in threads that use them.
    """
    features = struct.unpack_from("<Q", xstate, _SOFTWARE)[0]
    used = struct.unpack_from("<Q", xstate, _HEADER)[0]
    size = len(xstate)
    if features & _TILES and not used & _TILES:
        features &= sum(1 << bit for bit in _ENDS) & ~_TILES | 3
        size = max([_LEGACY_END, *(end for bit, end in _ENDS.items() if features >> bit & 1)])
    content = bytearray(xstate[:size])
    struct.pack_into("<IIQI28x", content, _SOFTWARE, _MAGIC1, size + 4, features, size)
    struct.pack_into("<Q", content, _HEADER, used & features)
    return bytes(content) + struct.pack("<I", _MAGIC2)


def build(address: int, restore: int, registers: Registers, xstate: bytes, mask: int) -> bytes:
    """The bytes from `address` on: the return address `restore`, the frame, the vector state.

    `address` must be 8 more than a multiple of 16, as the stack pointer is where a function begins. `xstate` as
    `xstate_for_frame` gives it.
    """
    if address % 16 != 8:
        raise ValueError(f"a frame at {address:#x}")
    vectors = (address + SIZE + 63) // 64 * 64
    content = bytearray(vectors - address) + xstate
    struct.pack_into("<QQQ", content, 0, restore, _UC_FP_XSTATE | _UC_SIGCONTEXT_SS | _UC_STRICT_RESTORE_SS, 0)
    struct.pack_into("<QiiQ", content, 24, 0, _KEEP_SIGNAL_STACK, 0, 0)
    saved = [getattr(registers, name) for name in _SAVED]
    struct.pack_into("<18Q", content, _UC_MCONTEXT, *saved)
    struct.pack_into("<4H", content, _UC_MCONTEXT + 144, registers.cs & 0xFFFF, 0, 0, registers.ss & 0xFFFF)
    struct.pack_into("<Q", content, _UC_MCONTEXT + 184, vectors)
    struct.pack_into("<Q", content, _UC_SIGMASK, mask)
    return bytes(content)


def address_below(stack: int, xstate: bytes) -> int:
    """Where a frame fits under the stack pointer `stack` and its red zone."""
    lowest = stack - RED_ZONE - len(xstate) - 64 - SIZE
    return lowest // 16 * 16 - 8
