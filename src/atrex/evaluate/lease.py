"""A lease on a device: many judges check on it side by side, one times on it alone.

The lock is a file that every judge of the device opens; the kernel gives it back when a judge dies. A judge that wants
the device for itself closes a turnstile first, so that it cannot be starved by those that come after it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Lease:
    """`shared()` for everything that touches the device, `exclusive()` for what is timed. Not to be nested."""

    crowded = True
    """Whether other judges may use the device."""

    def __init__(self, path: Path):
        """`path`: a file that all judges of one device name alike; a second one beside it is the turnstile."""
        self._device = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._turnstile = os.open(path.with_name(path.name + ".turnstile"), os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """The device together with others."""
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._device, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._device, fcntl.LOCK_UN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The device alone."""
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._device, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._device, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._device)
        os.close(self._turnstile)


class Alone:
    """The lease of a judge that has the device to itself anyway."""

    crowded = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        yield

    exclusive = shared

    def close(self) -> None:
        pass
