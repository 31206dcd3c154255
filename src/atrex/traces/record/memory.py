"""Reading and writing another process's memory, never past what its own pages allow."""

from __future__ import annotations

import ctypes
import errno
import os


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)


def _transfer(name: str, pid: int, address: int, buffer: ctypes.Array) -> None:
    call = getattr(_libc, name)
    call.restype = ctypes.c_ssize_t
    size = ctypes.sizeof(buffer)
    here, there = _Vector(ctypes.addressof(buffer), size), _Vector(address, size)
    one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    moved = call(ctypes.c_int(pid), ctypes.byref(here), one, ctypes.byref(there), one, flags)
    if moved != size:
        # A part of it is not there.
        raise _error(ctypes.get_errno() if moved < 0 else errno.EFAULT, pid, address)


def _error(number: int, pid: int, address: int) -> OSError:
    return OSError(number, f"{os.strerror(number)} at {address:#x} of process {pid}")


def read(pid: int, address: int, size: int) -> bytes:
    """Raises OSError where the process lets no one in or the memory is not there."""
    buffer = ctypes.create_string_buffer(size)
    try:
        _transfer("process_vm_readv", pid, address, buffer)
    except OSError as error:
        return _by_file(error, pid, address, size, None)
    return buffer.raw


def write(pid: int, address: int, content: bytes) -> None:
    """Raises OSError where the process lets no one in or the memory cannot be written."""
    try:
        _transfer("process_vm_writev", pid, address, ctypes.create_string_buffer(content, len(content)))
    except OSError as error:
        _by_file(error, pid, address, len(content), content)


def _by_file(error: OSError, pid: int, address: int, size: int, content: bytes | None) -> bytes:
    """By /proc/PID/mem, where containers' policies forbid the calls but not the file.

    The file takes no notice of what pages allow, so that is looked up: a write would go through into a guard page.
    """
    if error.errno not in (errno.EPERM, errno.ENOSYS):
        raise error
    try:
        handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY if content is None else os.O_RDWR)
    except OSError:
        raise error from None
    try:
        if content is None:
            found = os.pread(handle, size, address)
        else:
            if not _writable(pid, address, size):
                raise _error(errno.EFAULT, pid, address)
            found = content[: os.pwrite(handle, content, address)]
    except OSError as failed:
        raise _error(errno.EFAULT if failed.errno == errno.EIO else failed.errno, pid, address) from None
    finally:
        os.close(handle)
    if len(found) != size:
        raise _error(errno.EFAULT, pid, address)
    return found


def _writable(pid: int, address: int, size: int) -> bool:
    end = address
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            where, rights = line.split(maxsplit=2)[:2]
            first, last = (int(part, 16) for part in where.split("-"))
            if first <= end < last and "w" in rights:
                end = last
                if end >= address + size:
                    return True
    return False
