"""The network inside a jail: a loopback interface, and a listener that is given away."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
PORT = 3128  # where a proxy is looked for by habit
_BACKLOG = 64


def raise_loopback() -> None:
    """Bring up `lo` in the network namespace of this process. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, name + bytes(16))
        flags = struct.unpack_from("=h", answer, 16)[0]
        fcntl.ioctl(control, _SIOCSIFFLAGS, name + struct.pack("=h", flags | _IFF_UP) + bytes(14))


def listener() -> socket.socket:
    """A socket that listens on the loopback interface of this namespace, whoever accepts from it. Raises OSError."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", PORT))
    found.listen(_BACKLOG)
    return found
