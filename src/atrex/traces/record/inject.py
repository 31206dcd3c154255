"""Asking another process's interpreter to run code at a safe point, such that it survives whatever happens to us.

The main thread is stopped for about a millisecond and sent through `Py_AddPendingCall(PyRun_SimpleString, text)`, the
interpreter's own way to queue a call for its main thread; nothing of Python runs meanwhile. Before its registers are
set, all of them lie in a signal frame above the return address (see `frame`): should we be killed at any moment, the
thread finishes the call and finds back by itself. While we live, its registers, vector state, signal mask and
interrupted system call are put back exactly as they were.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from atrex.errors import UserError
from atrex.traces.record import frame, memory, target
from atrex.traces.record.ptrace import Registers, Stop, Tracee
from atrex.traces.record.target import Target

STOPPING, CALLING = 1.0, 0.02  # seconds that a stop and the call may take before it is looked at
PATIENCE = 5.0  # seconds after which a call that waits for a lock is left to itself
_MMAP, _RT_SIGRETURN, _FUTEX = 9, 15, 202
_USER_CODE, _NO_CALL = 0x33, (1 << 64) - 1
_TRAP, _DIRECTION, _ALIGNMENT = 0x100, 0x400, 0x40000  # eflags that a call must not find set
_READ_WRITE, _PRIVATE_ANONYMOUS, _NOREPLACE = 3, 0x22, 0x100000
# Signals that a thread raises on itself by a fault stay open; all others wait until it is back.
_OPEN = sum(1 << (s - 1) for s in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP))
_ALL_BUT_FAULTS = _NO_CALL & ~_OPEN
_GROWN = 1 << 24  # bytes by which a stack may have grown since it was looked up
_DEEP = 1024  # bytes of stack in which the frames that hold the lock are: it is held for a few instructions


@dataclass(frozen=True)
class Region:
    """Memory in the target: a mark, the text, a stack for the call, the signal frame. Later recordings use it again."""

    address: int

    SIZE = 0x20000
    TEXT, TEXT_END, STACK_TOP = 0x1000, 0xC000, 0x18000
    MARK = b"atrex-recorder-1"
    FREE, USED = 0, 1
    FIRST, STEP, COUNT = 0x2A7E_0000_0000, 0x10_0000, 64

    def is_free(self, pid: int) -> bool:
        try:
            found = memory.read(pid, self.address, 24)
        except OSError:
            return False
        return found == self.MARK + struct.pack("<Q", self.FREE)


@dataclass
class Injection:
    """How it went: `paused_s`, the time the main thread stood still; `tries`; the `region` to release after the run."""

    region: Region
    paused_s: float
    tries: int
    mapped: bool
    exact: bool


class _Retry(Exception):
    """Not now: the thread is where it must not be disturbed, or something else came up."""


class _Gone(Exception):
    pass


@dataclass
class _Attempt:
    """One stop of the main thread. `reached` is told each step, for tests that end us there."""

    where: Target
    text: bytes
    reached: Callable[[str], None]
    tracee: Tracee = field(init=False)
    stopped: bool = False
    result: Injection | None = None
    error: BaseException | None = None
    why: str = ""

    def __call__(self) -> None:
        """The body of a thread of its own: when it ends, the kernel lets go of what we traced, in any state."""
        self.tracee = Tracee(self.where.pid)
        try:
            self._run()
        except _Retry as retry:
            self.why = str(retry)
            self._leave()
        except OSError as error:
            self._leave()
            if error.errno == errno.ESRCH:
                self.error = _Gone()
            else:
                self.error = error
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            self.error = error
            self._leave()

    def _leave(self, deliver: int = 0) -> None:
        """Let go. Always safe: the thread is as it was, or goes back by its frame."""
        if self.stopped:
            self.stopped = False
            with contextlib.suppress(OSError):
                self.tracee.detach(deliver)

    def _run(self) -> None:
        regions, hint, stack = _places(self.where.pid)
        self.tracee.seize()
        self.reached("seized")
        began = time.monotonic()
        self.tracee.interrupt()
        stop = self._wait(STOPPING, to_syscall=False)
        if stop is None or not stop.interrupted:
            raise _Retry("the main thread is in the kernel and does not stop")
        old = self.tracee.registers()
        self._check(old)
        xstate, mask = self.tracee.xstate(), self.tracee.signal_mask()
        back = frame.resumable(old)
        for_frame = frame.xstate_for_frame(xstate)
        self.reached("stopped")
        region, mapped = next((r for r in regions if r.is_free(self.where.pid)), None), False
        if region is None:
            mapped = True
            if not stack.start - _GROWN < old.rsp < stack.end:
                raise _Retry("it runs on another stack than its own")  # how much room that has nobody tells
            at = frame.address_below(old.rsp, for_frame)
            self._write(at, frame.build(at, self.where.restore, back, for_frame, mask))
            self.reached("frame on the stack")
            region = self._map(old, at, hint)
        if region is not None:
            at = region.address + Region.STACK_TOP + 8
            self._write(region.address, Region.MARK + struct.pack("<Q", Region.USED))
            self._write(region.address + Region.TEXT, self.text + b"\0")
            self._write(at, frame.build(at, self.where.restore, back, for_frame, mask))
            self.reached("text written")
            call = self._call(old, at, self.where.add, self.where.run, region.address + Region.TEXT)
            self.tracee.set_registers(call)
            self.reached("call set")
            if not mapped:
                self.tracee.set_signal_mask(_ALL_BUT_FAULTS)
                self.reached("signals blocked")
        self._until_return(at, old, xstate, mask)
        self.reached("returning")
        exact = self._put_back(old, xstate, mask)
        if region is None:
            raise _Retry("it has no memory left for the text")
        self.result = Injection(region, time.monotonic() - began, 1, mapped, exact)

    def _wait(self, seconds: float, to_syscall: bool = True) -> Stop | None:
        """The next stop of ours; stops for signals in between are passed on. Raises _Retry for a job-control stop."""
        deadline = time.monotonic() + seconds
        while True:
            stop = self.tracee.wait(max(0.0, deadline - time.monotonic()))
            if stop is None:
                return None
            self.stopped = True
            if stop.group:
                raise _Retry("the process was stopped")
            if stop.syscall or stop.interrupted:
                return stop
            self.stopped = False
            self.tracee.resume(to_syscall, stop.signal)

    def _write(self, address: int, content: bytes) -> None:
        try:
            memory.write(self.where.pid, address, content)
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise _Retry("its stack is full") from None
            raise

    def _check(self, registers: Registers) -> None:
        """Raise _Retry where the thread must not be sent elsewhere: the next stop will be in another place."""
        if registers.cs != _USER_CODE:
            raise UserError(f"--pid {self.where.pid}: not a 64-bit process")
        if not target.running(self.where):
            raise _Retry("its interpreter is being set up or taken down")
        pid, at = self.where.pid, registers.rip
        if (area := self.tracee.rseq()) and (section := struct.unpack("<Q", memory.read(pid, area + 8, 8))[0]):
            _, _, start, length, _ = struct.unpack("<IIQQQ", memory.read(pid, section, 32))
            if start <= at < start + length:
                raise _Retry("it is in a restartable sequence")
        if registers.in_syscall:
            return  # code that holds the lock makes no system call
        stack = self._stack(registers.rsp)
        if _within(at, self.where.locked) or any(_within(word, self.where.locked) for word in stack):
            raise _Retry("it is queueing or taking a pending call")
        caller = any(_within(word, self.where.handling) for word in (at, *stack[:64]))
        if caller or any(_within(word, self.where.near) for word in (at, *stack[:8])):
            raise _Retry("it may hold the lock of the pending calls")

    def _stack(self, top: int) -> tuple[int, ...]:
        """Words from the stack pointer up: `_DEEP` bytes, or as many as are there."""
        for size in (_DEEP, 4096 - top % 4096, 64):
            try:
                return struct.unpack(f"<{size // 8}Q", memory.read(self.where.pid, top, size // 8 * 8))
            except OSError:
                continue
        raise _Retry("its stack cannot be read")

    def _call(self, old: Registers, stack: int, function: int, *arguments: int) -> Registers:
        call = old.copy()
        for name, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments, strict=False):
            setattr(call, name, value)
        call.rip, call.rsp, call.orig_rax, call.rax = function, stack, _NO_CALL, 0
        call.eflags &= ~(_TRAP | _DIRECTION | _ALIGNMENT)
        return call

    def _map(self, old: Registers, at: int, hint: int) -> Region | None:
        """Let the thread map memory, and stop it at the system call's end; None where it got none."""
        flags = _PRIVATE_ANONYMOUS | (_NOREPLACE if hint else 0)
        call = self._call(old, at, self.where.syscall, hint, Region.SIZE, _READ_WRITE, flags, _NO_CALL, 0)
        call.rax = _MMAP
        self.tracee.set_registers(call)
        self.reached("map set")
        self.tracee.set_signal_mask(_ALL_BUT_FAULTS)
        for step in ("map begun", "map done"):
            self.stopped = False
            self.tracee.resume(to_syscall=True)
            if self._wait(STOPPING) is None:
                raise _Retry("it took too long to map memory")
            self.reached(step)
        found = self.tracee.registers().result
        return None if -4096 < found < 0 else Region(found)

    def _until_return(self, at: int, old: Registers, xstate: bytes, mask: int) -> None:
        """Run until the thread asks the kernel for its frame: the call is over, the frame still there."""
        last = time.monotonic() + PATIENCE
        while True:
            self.stopped = False
            self.tracee.resume(to_syscall=True)
            late = self._wait(CALLING) is None
            if late:
                self.tracee.interrupt()
                if self._wait(STOPPING) is None or time.monotonic() > last:
                    raise _Retry("the call does not return")
            now = self.tracee.registers()
            if now.orig_rax == _RT_SIGRETURN and now.rsp == at + 8:
                return
            if late and now.orig_rax == _FUTEX and now.result in frame.RESTARTS:
                self._call_back(old, xstate, mask)

    def _call_back(self, old: Registers, xstate: bytes, mask: int) -> None:
        """The thread itself holds the lock that it now waits for: undo the call, come again later.

        Up to 3.12 the lock is a semaphore, whose count of waiters stays one too high: a wake-up more at each release.
        Since 3.13 a waiting thread has given up its place in the interpreter, and nothing can be undone.
        """
        if self.where.version < (3, 13):
            self._restore(old, xstate, mask)
            raise _Retry("it holds the lock of the pending calls")

    def _put_back(self, old: Registers, xstate: bytes, mask: int) -> bool:
        """Everything as the stop found it, from a stop in which the kernel still restarts a system call.

        False where it went back by its frame instead, which differs in no more than a relative timeout begun anew.
        """
        again = self.tracee.registers()
        again.rip, again.orig_rax = self.where.restore, _NO_CALL
        self.tracee.set_registers(again)
        self.tracee.interrupt()
        self.reached("return held")
        self.stopped = False
        self.tracee.resume(to_syscall=False)
        stop = self._wait(STOPPING, to_syscall=False)
        now = self.tracee.registers() if stop is not None else None
        if now is None or now.rip != self.where.restore or now.rsp != again.rsp:
            self._leave()
            return False
        self._restore(old, xstate, mask)
        self._leave()
        return True

    def _restore(self, old: Registers, xstate: bytes, mask: int) -> None:
        self.tracee.set_signal_mask(mask)
        self.reached("mask back")
        self.tracee.set_xstate(xstate)
        self.reached("vectors back")
        self.tracee.set_registers(old)
        self.reached("registers back")


def _places(pid: int) -> tuple[list[Region], int, target.Range]:
    """The regions that are there, an address for another one (0: the kernel may choose, it is not found again), and
    the main thread's stack. Read before the stop: it takes a while.
    """
    taken = target.mappings(pid)
    starts = range(Region.FIRST, Region.FIRST + Region.STEP * Region.COUNT, Region.STEP)
    regions = [Region(m.start) for m in taken if m.start in starts and m.end - m.start == Region.SIZE]
    inside = [m for m in taken if m.end > starts.start and m.start < starts.stop]
    free = [s for s in starts if not any(m.start < s + Region.SIZE and s < m.end for m in inside)]
    stack = next((target.Range(m.start, m.end) for m in taken if m.path == "[stack]"), target.Range(0, 0))
    return regions, free[0] if free else 0, stack


def _within(address: int, ranges: tuple[target.Range, ...]) -> bool:
    return any(r.start <= address < r.end for r in ranges)


def inject(
    where: Target, source: str, *, patience: float = 10.0, reached: Callable[[str], None] = lambda step: None
) -> Injection:
    """Queue `source` to be run in `__main__` of the target's main thread. It must not raise.

    Returns when it is queued; it runs when the main thread next comes to the interpreter's loop. Once it is known to
    have run, `release` the region. Raises UserError where that is not allowed, or not possible within `patience`
    seconds.
    """
    text = source.encode()
    if b"\0" in text or len(text) >= Region.TEXT_END - Region.TEXT:
        raise ValueError(f"text of {len(text)} bytes")
    deadline, tries = time.monotonic() + patience, 0
    while True:
        tries += 1
        attempt = _Attempt(where, text, reached)
        thread = threading.Thread(target=attempt, name="atrex-ptrace", daemon=True)
        thread.start()
        thread.join()
        if attempt.result is not None:
            attempt.result.tries = tries
            return attempt.result
        if attempt.error is not None and not _worth_another(attempt.error, where.pid):
            raise _explained(attempt.error, where.pid) from None
        if time.monotonic() > deadline:
            raise UserError(f"--pid {where.pid}: {attempt.why or attempt.error}, for {patience:.0f} s")
        time.sleep(min(0.001 * tries, 0.05))


def _worth_another(error: BaseException, pid: int) -> bool:
    """The thread that traced before us may not be quite gone."""
    return isinstance(error, PermissionError) and target.tracer(pid) == os.getpid()


def _explained(error: BaseException, pid: int) -> BaseException:
    if isinstance(error, _Gone) or not target.alive(pid):
        return UserError(f"--pid {pid}: the process ended")
    if isinstance(error, PermissionError):
        return UserError(target.refusal(pid))
    if isinstance(error, OSError):
        return UserError(f"--pid {pid}: {error}")
    return error


def release(where: Target, region: Region) -> None:
    """Say that the text has run and its memory can serve the next recording; without it 128 KiB stay reserved."""
    with contextlib.suppress(OSError):
        memory.write(where.pid, region.address, Region.MARK + struct.pack("<Q", Region.FREE))
