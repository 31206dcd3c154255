"""Framed JSON over a Unix socket pair: the only way between the judge and a worker.

Nothing is ever unpickled: a frame is a 4-byte length and a JSON object, so that the reading side can be handed
nothing but data.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any

MAX_FRAME = 16 << 20
_HEADER = struct.Struct("<I")


class ChannelClosed(Exception):
    """The other side is gone, or sent something that is no frame."""


class ChannelTimeout(Exception):
    """No complete frame came before the deadline."""


class Channel:
    """One end of a socket pair."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send one message, with file descriptors beside its first byte. Raises ChannelClosed."""
        body = json.dumps(message).encode()
        frame = _HEADER.pack(len(body)) + body
        try:
            if fds:
                sent = socket.send_fds(self.sock, [frame], fds)
                frame = frame[sent:]
            if frame:
                self.sock.sendall(frame)
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def await_frame(self, timeout: float) -> None:
        """Spin until something has come: for a clock that must not include the time to wake up. Raises as `receive`."""
        deadline = time.monotonic() + timeout
        while not self._buffer:
            try:
                data = self.sock.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ChannelTimeout from None
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not data:
                raise ChannelClosed("end of stream")
            self._buffer += data

    def receive(self, timeout: float | None = None, max_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors. Raises ChannelTimeout (`timeout` in seconds) or ChannelClosed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        fds: list[int] = []
        while True:
            message = self._take()
            if message is not None:
                return message, fds
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ChannelTimeout
            ready, _, _ = select.select([self.sock], [], [], left)
            if not ready:
                continue
            try:
                if max_fds:
                    data, new, _, _ = socket.recv_fds(self.sock, 1 << 16, max_fds)
                    fds += new
                else:
                    data = self.sock.recv(1 << 16)
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not data:
                raise ChannelClosed("end of stream")
            self._buffer += data

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._buffer)
        if size > MAX_FRAME:
            raise ChannelClosed(f"frame of {size} bytes")
        end = _HEADER.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            raise ChannelClosed("a frame that is not JSON") from None
        if not isinstance(message, dict):
            raise ChannelClosed("a frame that is not an object")
        return message

    def close(self) -> None:
        self.sock.close()
