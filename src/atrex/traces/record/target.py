"""A running CPython process, looked at from outside: what it is, and where in it the recorder's few symbols are."""

from __future__ import annotations

import os
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from atrex.errors import UserError
from atrex.traces.record import memory
from atrex.traces.record.elf import Elf

ADD, RUN = "Py_AddPendingCall", "PyRun_SimpleString"
# Code that holds the lock of the pending calls for a few instructions, or may have been inlined around such code.
_LOCKED = ("_PyEval_AddPendingCall", "Py_MakePendingCalls", "_PyEval_MakePendingCalls", "make_pending_calls",
           "_make_pending_calls", "_pop_pending_call", "_push_pending_call")  # fmt: skip
_HANDLING = ("_Py_HandlePending", "handle_eval_breaker", "eval_frame_handle_pending")
_NEAR = ("PyThread_acquire_lock",
         "PyThread_acquire_lock_timed", "PyThread_release_lock", "PyMutex_Lock", "PyMutex_Unlock", "_PyMutex_LockSlow",
         "_PyMutex_LockTimed", "_PyMutex_UnlockSlow", "_PyMutex_TryUnlock", "_PyParkingLot_Park",
         "_PyParkingLot_Unpark")  # fmt: skip
_NEAR_LIBC = ("sem_wait", "sem_trywait", "sem_timedwait", "sem_clockwait", "sem_post")
_RESTORE = bytes.fromhex("48c7c00f0000000f05")  # mov $15,%rax; syscall: __restore_rt in glibc and musl
_SYSCALL = bytes.fromhex("0f05c3")  # syscall; ret
_PYTHON = re.compile(r"(?:lib)?python(\d)\.(\d+)")
_TORCH = "libtorch_python.so"


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    rights: str
    offset: int
    inode: int
    path: str


@dataclass(frozen=True)
class Range:
    start: int
    end: int


@dataclass(frozen=True)
class Target:
    """Addresses in a process. `syscall` and `restore`: the two pieces of the C library's code that are used.

    `locked`: code that stands on the stack only while a pending call is queued or run. `handling`: its caller, which
    has other work too. `near`: code that may run with the lock held. `runtime`: _PyRuntime, 0 where it is not exported.
    """

    pid: int
    version: tuple[int, int]
    add: int
    run: int
    syscall: int
    restore: int
    locked: tuple[Range, ...]
    handling: tuple[Range, ...]
    near: tuple[Range, ...]
    runtime: int
    torch: bool


def mappings(pid: int) -> list[Mapping]:
    """What /proc/PID/maps says. Raises UserError where there is no such process or we may not look."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except FileNotFoundError:
        raise UserError(f"no process {pid} (a container's process has another id outside of it)") from None
    except (PermissionError, ProcessLookupError):
        raise UserError(refusal(pid)) from None
    found = []
    for line in text.splitlines():
        where, rights, offset, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in where.split("-"))
        found.append(Mapping(start, end, rights, int(offset, 16), int(inode), path[0] if path else ""))
    return found


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; empty where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def tracer(pid: int) -> int:
    """The process that traces this one; 0 for none."""
    thread = int(status(pid).get("TracerPid", 0))
    return int(status(thread).get("Tgid", thread)) if thread else 0


def alive(pid: int) -> bool:
    return status(pid).get("State", "X")[0] not in "XZ"


def inspect(pid: int) -> Target:
    """Find what attaching needs in a process. Raises UserError, with the reason, where it cannot be attached to."""
    if platform.machine() != "x86_64":
        raise UserError(
            f"--pid {pid}: attaching is written for x86-64, this is {platform.machine()}; "
            "use --url for an engine, or `--` to start the program"
        )
    about = status(pid)
    found = mappings(pid)
    if about.get("State", "X")[0] in "XZ" or not found:
        raise UserError(f"--pid {pid}: the process has no main thread any more, or is the kernel's")
    if about["State"][0] == "T":
        raise UserError(f"--pid {pid}: the process is stopped ({about['State']}); continue it first")
    if (other := tracer(pid)) and other != os.getpid():
        raise UserError(f"--pid {pid}: process {other} is tracing it, and the kernel allows one at a time")
    if "shstk" in about.get("x86_Thread_features", ""):
        raise UserError(f"--pid {pid}: the process runs with a shadow stack, which forbids calls from outside")
    module, elf, bias = _interpreter(pid, found)
    with elf:
        symbols = elf.symbols((ADD, RUN, "_PyRuntime", "Py_Version", *_LOCKED, *_HANDLING, *_NEAR))
        _check_content(pid, elf, bias, symbols[ADD][0].address, module.path)
        version = _version(pid, module, symbols, bias)
        runtime = symbols["_PyRuntime"][0].address + bias if "_PyRuntime" in symbols else 0
        locked, handling = (_ranges(symbols, names, bias) for names in ((ADD, *_LOCKED), _HANDLING))
        near = _ranges(symbols, _NEAR, bias)
    syscall, restore, semaphores = _libc(pid, found)
    return Target(
        pid=pid, version=version, add=symbols[ADD][0].address + bias, run=symbols[RUN][0].address + bias,
        syscall=syscall, restore=restore, locked=locked, handling=handling, near=(*near, *semaphores), runtime=runtime,
        torch=any(_TORCH in m.path for m in found),
    )  # fmt: skip


def _ranges(symbols: dict, names: tuple[str, ...], bias: int) -> tuple[Range, ...]:
    # A function without a size is taken to be a small one.
    return tuple(
        Range(s.address + bias, s.address + bias + (s.size or 256)) for name in names for s in symbols.get(name, ())
    )


def _open(pid: int, mapping: Mapping) -> Elf:
    """The file behind a mapping, as the process sees it. Raises OSError or ValueError."""
    for path in (f"/proc/{pid}/root{mapping.path}", f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"):
        try:
            return Elf(path)
        except OSError:
            continue
    raise OSError(f"cannot open {mapping.path}")


def _bias(elf: Elf, first: Mapping) -> int:
    segment = next(s for s in elf.segments if s.offset & -4096 == first.offset)
    return first.start - (segment.address & -4096)


def _interpreter(pid: int, found: list[Mapping]) -> tuple[Mapping, Elf, int]:
    """The first mapping of the file that holds CPython, the file, and what to add to its addresses."""
    executable = os.readlink(f"/proc/{pid}/exe")
    files: dict[str, Mapping] = {}
    for mapping in found:
        if mapping.inode and mapping.path.startswith("/"):
            files.setdefault(mapping.path, mapping)
    libraries = [path for path in files if re.search(r"/libpython\d[^/]*\.so", path)]
    for path in (*libraries, executable):
        if path not in files:
            continue
        try:
            elf = _open(pid, files[path])
            if {ADD, RUN} <= elf.symbols((ADD, RUN)).keys():
                return files[path], elf, _bias(elf, files[path])
        except (OSError, ValueError, StopIteration):
            if path.endswith("(deleted)"):
                raise UserError(f"--pid {pid}: {path} was replaced since the process started") from None
            continue
        elf.close()
    raise UserError(f"--pid {pid}: no CPython in {executable}: neither it nor a libpython exports {ADD}")


def _check_content(pid: int, elf: Elf, bias: int, address: int, path: str) -> None:
    """That the file is the one that runs: an upgrade may have replaced it. Raises UserError."""
    try:
        running = memory.read(pid, address + bias, 32)
    except PermissionError:
        raise UserError(refusal(pid)) from None
    except OSError as error:
        raise UserError(f"--pid {pid}: {error}") from None
    if running != elf.read(elf.offset_of(address), 32):
        raise UserError(f"--pid {pid}: {path} is not the file that runs: it was replaced since the process started")


def _version(pid: int, module: Mapping, symbols: dict, bias: int) -> tuple[int, int]:
    if "Py_Version" in symbols:
        number = struct.unpack("<Q", memory.read(pid, symbols["Py_Version"][0].address + bias, 8))[0]
        return number >> 24 & 0xFF, number >> 16 & 0xFF
    named = _PYTHON.search(Path(module.path).name)
    return (int(named[1]), int(named[2])) if named else (3, 0)


def _libc(pid: int, found: list[Mapping]) -> tuple[int, int, tuple[Range, ...]]:
    """Addresses of `syscall; ret` and of `__restore_rt`, and the semaphores' code. Raises UserError."""
    near: list[Range] = []
    gadgets: dict[bytes, int] = {}
    for name in (r"/libc[.-]", r"/ld-musl-", r"/libpthread[.-]"):
        mapping = next((m for m in found if re.search(name, m.path)), None)
        if mapping is None:
            continue
        try:
            with _open(pid, mapping) as elf:
                near += _ranges(elf.symbols(_NEAR_LIBC), _NEAR_LIBC, _bias(elf, mapping))
        except (OSError, ValueError, StopIteration):
            pass
        for code in (m for m in found if m.path == mapping.path and "x" in m.rights):
            content = memory.read(pid, code.start, code.end - code.start)
            for piece in (_SYSCALL, _RESTORE):
                at = content.find(piece)
                if at >= 0:
                    gadgets.setdefault(piece, code.start + at)
    if len(gadgets) < 2:
        raise UserError(f"--pid {pid}: no C library that is known (glibc, musl) is mapped in it")
    return gadgets[_SYSCALL], gadgets[_RESTORE], tuple(near)


def running(target: Target) -> bool:
    """Whether the interpreter is set up and not being taken down. Layouts: CPython's pycore_runtime.h.

    Where the layout is not known, a loaded torch shows that it is set up.
    """
    if not target.runtime:
        return target.torch
    head = memory.read(target.pid, target.runtime, 48)
    if head[:8] == b"xdebugpy":  # since 3.13 the structure says where its fields are
        _, finalizing, first = struct.unpack_from("<QQQ", head, 24)
        at = [struct.unpack("<Q", memory.read(target.pid, target.runtime + o, 8))[0] for o in (finalizing, first)]
        return at[0] == 0 and at[1] != 0
    if (3, 8) <= target.version <= (3, 12):  # preinitializing, preinitialized, core_initialized, initialized
        return struct.unpack_from("<iiii", head, 4 if target.version >= (3, 11) else 0) == (0, 1, 1, 1)
    return target.torch


def refusal(pid: int) -> str:
    """Why the kernel does not let us into a process, in one line, with what helps."""
    about, mine = status(pid), status(os.getpid())
    may_trace = int(mine.get("CapEff", "0"), 16) >> 19 & 1
    owner, own = (s.get("Uid", "?").split()[0] for s in (about, mine))
    if owner != own and not may_trace:
        return f"--pid {pid}: it belongs to uid {owner}, we are uid {own}: run as that user or as root"
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope == 3:
        return f"--pid {pid}: kernel.yama.ptrace_scope is 3: this machine allows no attaching until it is restarted"
    if scope and not may_trace:
        return f"--pid {pid}: kernel.yama.ptrace_scope is {scope}: run as root, or set it to 0 with sysctl"
    if not may_trace:
        return f"--pid {pid}: not allowed: in a container, start it with --cap-add SYS_PTRACE, else run as root"
    return f"--pid {pid}: not allowed, although we have CAP_SYS_PTRACE: a seccomp or security policy forbids ptrace"


_SYSCALLS = {
    0: "read", 7: "poll", 16: "ioctl", 23: "select", 35: "nanosleep", 43: "accept", 45: "recvfrom", 47: "recvmsg",
    61: "wait4", 202: "futex", 219: "restart_syscall", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
    270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 441: "epoll_pwait2",
}  # fmt: skip


def whereabouts(pid: int) -> str:
    """What the main thread does right now, in words."""
    try:
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        call = Path(f"/proc/{pid}/task/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return "is gone or cannot be seen"
    if state == "D":
        return "waits in the kernel and cannot be interrupted"
    if call == "running" or not call.lstrip("-").isdigit() or int(call) < 0:
        return "runs native code"
    return f"waits in the system call {_SYSCALLS.get(int(call), call)}"
