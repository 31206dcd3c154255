"""Reading and writing another process's memory, never past what its own pages allow (unlike /proc/PID/mem)."""

from __future__ import annotations

import ctypes
import os


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)


def _transfer(name: str, pid: int, address: int, buffer: ctypes.Array) -> None:
    call = getattr(_libc, name)
    call.restype = ctypes.c_ssize_t
    size = ctypes.sizeof(buffer)
    here, there = _Vector(ctypes.addressof(buffer), size), _Vector(address, size)
    one = ctypes.c_ulong(1)
    moved = call(
        ctypes.c_int(pid), ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong(0)
    )  # fmt: skip
    if moved != size:
        error = ctypes.get_errno() if moved < 0 else 14  # EFAULT: a part of it is not there
        raise OSError(error, f"{os.strerror(error)} at {address:#x} of process {pid}")


def read(pid: int, address: int, size: int) -> bytes:
    """Raises OSError where the process lets no one in or the memory is not there."""
    buffer = ctypes.create_string_buffer(size)
    _transfer("process_vm_readv", pid, address, buffer)
    return buffer.raw


def write(pid: int, address: int, content: bytes) -> None:
    """Raises OSError where the process lets no one in or the memory cannot be written."""
    _transfer("process_vm_writev", pid, address, ctypes.create_string_buffer(content, len(content)))
