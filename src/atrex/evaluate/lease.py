"""A lease on a device: many judges check on it side by side, one times on it alone.

A lock is a file that every judge of the device opens; the kernel gives it back when a judge dies. A judge that wants
something for itself closes a turnstile first, so that it cannot be starved by those that come after it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


class _Lock:
    """Held by many or by one, in the order in which they ask."""

    def __init__(self, path: Path):
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._turnstile = os.open(path.with_name(path.name + ".turnstile"), os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def held(self, how: int) -> Iterator[None]:
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._lock, how)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

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
        return self._device.held(fcntl.LOCK_SH)

    def exclusive(self) -> AbstractContextManager[None]:
        """The device alone."""
        return self._device.held(fcntl.LOCK_EX)

    def room(self, alone: bool = False) -> AbstractContextManager[None]:
        """The device's memory: `alone` once no other judge has a unit in hand."""
        return self._room.held(fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

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
