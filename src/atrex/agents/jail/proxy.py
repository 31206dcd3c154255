"""The one way out of a jail: an HTTP proxy with a list of hosts, which keeps a note of every ask.

It runs in the supervisor, which accepts from a listener inside the jail's network. CONNECT opens a tunnel; a plain
request with an absolute address is passed on, one for each connection; one that is meant for the listener itself goes
to the model's service, where there is one. Nothing else is answered.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from atrex.agents.jail import network
from atrex.agents.jail.ask import Ask, parse_host
from atrex.agents.jail.service import Relay, Service, cut

_HEAD = 16 << 10  # bytes of a request's head
_PATIENCE = 15.0  # seconds for the head, and for a connection to be made
_IDLE = 900.0  # a model may think for minutes before it says a word
_MOST = 64  # connections at once
_LAST_WORDS = 5.0  # seconds in which what is cut off is still noted


class Proxy:
    """Serves a listener until `close`. `hosts` are (name, port) pairs; threads call `note` for every ask."""

    def __init__(
        self,
        listener: socket.socket,
        hosts: Iterable[tuple[str, int]],
        note: Callable[[Ask], None],
        service: Service | None = None,
    ):
        self._listener, self._hosts, self._note = listener, frozenset(hosts), note
        self._relay = Relay(service, self._kept) if service is not None else None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_MOST)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and cut what is open; what was asked is noted then."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                cut(each)
        self._thread.join(_PATIENCE)
        until = time.monotonic() + _LAST_WORDS
        for _ in range(_MOST):
            if not self._free.acquire(timeout=max(0.0, until - time.monotonic())):
                return

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._free.acquire()
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        try:
            with self._kept(client), contextlib.suppress(OSError, ValueError):
                self._answer_one(client)
        finally:
            self._free.release()

    @contextlib.contextmanager
    def _kept(self, one: socket.socket):
        with self._lock:
            self._open.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(one)
            one.close()

    def _answer_one(self, client: socket.socket) -> None:
        client.settimeout(_PATIENCE)
        head, rest = _read_head(client)
        method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        connect = method == "CONNECT"
        if self._relay is not None and not connect and _is_ours(target):
            self._note(self._relay.answer(client, head, rest))
            return
        host, port = parse_host(target)
        if not connect and not target.startswith("http://"):
            client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        if (host, port) not in self._hosts:
            self._note(Ask(host, port, False))
            said = f"{host}:{port} is not among the hosts that this run may reach\n".encode()
            client.sendall(
                b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
            )
            return
        started = time.monotonic()
        try:
            server = socket.create_connection((host, port), timeout=_PATIENCE)
        except OSError as error:
            self._note(Ask(host, port, True, seconds=time.monotonic() - started, error=str(error)))
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        with self._kept(server):
            if connect:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                first = rest
            else:
                first = _origin_form(method, target, version, head) + rest
            sent, received = _relay(client, server, first)
        self._note(Ask(host, port, True, sent, received, time.monotonic() - started))


def _is_ours(target: str) -> bool:
    """Whether a request is for the listener itself, also where a program sends it as to a proxy."""
    return target.startswith("/") or urlsplit(target).netloc == f"127.0.0.1:{network.PORT}"


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(4096)
        if not more or len(data) > _HEAD:
            raise ValueError("no request")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _origin_form(method: str, target: str, version: str, head: bytes) -> bytes:
    """The head of a request as a server wants it; the connection ends with the answer."""
    parts = urlsplit(target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = head.split(b"\r\n")[1:]
    kept = [line for line in lines if not line.lower().startswith((b"proxy-", b"connection:"))]
    return b"\r\n".join([f"{method} {path} {version}".encode(), *kept, b"Connection: close"]) + b"\r\n\r\n"


def _relay(client: socket.socket, server: socket.socket, first: bytes) -> tuple[int, int]:
    """Bytes sent to and received from the server, until both sides are done."""
    counts = [0, 0]

    def pump(source: socket.socket, sink: socket.socket, which: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                if data:
                    sink.sendall(data)
                    counts[which] += len(data)
                data = source.recv(1 << 16)
                if not data:
                    break
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    for one in (client, server):
        one.settimeout(_IDLE)
    back = threading.Thread(target=pump, args=(server, client, 1, b""), daemon=True)
    back.start()
    pump(client, server, 0, first)
    back.join()
    return counts[0], counts[1]
