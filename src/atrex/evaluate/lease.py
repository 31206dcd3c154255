"""A lease on a device: many judges check on it side by side, one times on it alone.

A lock is a file that every judge of the device opens; the kernel gives it back when a judge dies. A judge that wants
something for itself closes a turnstile, through which all others have to come, until it has had it: no check that comes
later starves it, and judges that wait to time do so one after the other, for one wait until the device is quiet.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


class _Lock:
    """Held by many, or by one, which goes first."""

    def __init__(self, path: Path):
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._turnstile = os.open(path.with_name(path.name + ".turnstile"), os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def together(self) -> Iterator[None]:
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)  # one at a time, and nobody while it is closed
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        fcntl.flock(self._turnstile, fcntl.LOCK_SH)  # closed by all that want it alone: it opens behind the last one
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._lock)
        os.close(self._turnstile)


class Lease:
    """`shared()` for everything that touches the device, `exclusive()` for what is timed. Neither is to be nested.

    `room()` is around a whole unit: what it keeps on the device lies beside that of others, or alone.
    """

    crowded = True
    """Whether other judges may use the device."""

    def __init__(self, path: Path):
        """`path`: a file that all judges of one device name alike; others lie beside it."""
        self._device = _Lock(path)
        self._room = _Lock(path.with_name(path.name + ".room"))

    def shared(self) -> AbstractContextManager[None]:
        """The device together with others."""
        return self._device.together()

    def exclusive(self) -> AbstractContextManager[None]:
        """The device alone."""
        return self._device.alone()

    def room(self, alone: bool = False) -> AbstractContextManager[None]:
        """The device's memory: `alone` once no other judge has a unit in hand."""
        return self._room.alone() if alone else self._room.together()

    def close(self) -> None:
        self._device.close()
        self._room.close()


class Alone:
    """The lease of a judge that has the device to itself anyway."""

    crowded = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        yield

    exclusive = shared

    @contextmanager
    def room(self, alone: bool = False) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass
