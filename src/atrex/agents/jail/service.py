"""The model's service as a jail sees it: a plain address inside, the key and TLS outside.

A program in the jail is given `PLACEHOLDER` for a key and `Service.inside` for an address. What it sends there is read
by the supervisor, which puts the real key in place of the placeholder and passes the request on, the answer piece by
piece as it comes. Only the requests of `Service.requests` are passed on.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from atrex.agents.jail.ask import Ask, parse_host
from atrex.agents.jail.meter import Meter
from atrex.agents.jail.network import PORT

PLACEHOLDER = "atrex-placeholder-no-key"
_CREDENTIALS = ("authorization", "x-api-key")
# Of one connection and not of the request; what else names an account or asks for a form that could not be looked into.
_LEFT_OUT = {
    "accept-encoding", "connection", "content-length", "cookie", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
_LARGEST = 48 << 20  # bytes of a request's body; Anthropic takes 32 MB
_SHORTEST_KEY = 8  # characters; what is shorter is a word, and is left where it stands in an answer
_PIECE = 1 << 16
_PATIENCE = 15.0  # seconds for a connection to be made, and for every piece of a request
_IDLE = 900.0  # a model may think for minutes before it says a word


@dataclass(frozen=True)
class Service:
    """Where a model really answers, and what of it may be asked from a jail.

    `requests` are a method and a path below that of `url`, "POST /messages". `refuses` is shown the JSON body of a
    request, and says in a line why it may not pass, or None.
    """

    url: str
    key: str = field(repr=False)
    requests: tuple[str, ...]
    refuses: Callable[[dict[str, Any]], str | None] | None = None

    @property
    def host(self) -> tuple[str, int]:
        return parse_host(self.url)

    @property
    def base(self) -> str:
        return urlsplit(self.url).path.rstrip("/")

    @property
    def inside(self) -> str:
        """Its address in the jail."""
        return f"http://127.0.0.1:{PORT}{self.base}"


class _Refused(Exception):
    """The request is not passed on: the status for it, and a line that says why."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


class Relay:
    """Answers requests to a service, each on a connection of its own, from several threads."""

    def __init__(self, service: Service, keep: Callable[[socket.socket], AbstractContextManager[None]]):
        self._service, self._keep = service, keep
        self._bodies = threading.BoundedSemaphore(8)  # of requests that are held in memory at once
        host, port = service.host
        self._ask = Ask(host, port, True)

    def answer(self, client: socket.socket, head: bytes, rest: bytes) -> Ask:
        """Pass one request on, of which the head and the first bytes of the body were read. What is to be noted."""
        began = time.monotonic()
        ask = self._ask
        try:
            method, target, fields = _parse(head)
            ask = replace(ask, path=target.split("?", 1)[0])
            self._admit(method, ask.path)
            with ExitStack() as opened:
                with self._bodies:
                    body = _body(_Incoming(client, rest), fields)
                    ask = replace(ask, model=self._looked_at(body), sent=len(body))
                    server = self._connect()
                    connection = server.sock
                    opened.enter_context(self._keep(connection))
                    self._send(server, method, target, fields, body)
                    del body
                ask = self._pass_back(client, server, connection, ask)
        except _Refused as refused:
            ask = replace(ask, allowed=refused.status == 502, error=refused.why)
            _say(client, refused.status, refused.why)
        return replace(ask, seconds=time.monotonic() - began)

    def _admit(self, method: str, path: str) -> None:
        base = self._service.base
        if not path.startswith(base) or f"{method} {path.removeprefix(base)}" not in self._service.requests:
            raise _Refused(403, f"{method} {path} is not among what this run may ask of the service")

    def _looked_at(self, body: bytes) -> str | None:
        """The model that a body asks. Raises _Refused for one that cannot be read or may not pass."""
        if not body:
            return None
        try:
            found = json.loads(body, object_pairs_hook=_once)
            if not isinstance(found, dict):
                raise ValueError
            why = self._service.refuses(found) if self._service.refuses else None
        except (ValueError, RecursionError):
            raise _Refused(400, "the body of the request is no JSON object, or has a name twice") from None
        if why:
            raise _Refused(403, why)
        model = found.get("model")
        return model if isinstance(model, str) else None

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._service.host
        try:
            if urlsplit(self._service.url).scheme == "https":
                server = http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=_trust())
            else:
                server = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
            server.connect()
        except OSError as error:
            raise _Refused(502, f"{host}:{port} is not reached: {error}") from None
        server.sock.settimeout(_IDLE)
        return server

    def _send(
        self, server: http.client.HTTPConnection, method: str, target: str, fields: list[tuple[str, str]], body: bytes
    ) -> None:
        try:
            server.putrequest(method, target, skip_accept_encoding=True)
            for name, value in self._with_key(fields):
                server.putheader(name, value)
            server.putheader("Accept-Encoding", "identity")  # what is packed could not be searched for the key
            server.putheader("Content-Length", str(len(body)))
            server.putheader("Connection", "close")
            server.endheaders(body or None)
        except (BrokenPipeError, ConnectionResetError):
            return  # it may have answered before it had read all
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _Refused(502, f"the request cannot be passed on: {error}") from None

    def _with_key(self, fields: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        for name, value in fields:
            if name.lower() in _CREDENTIALS:
                if PLACEHOLDER in value:
                    yield name, value.replace(PLACEHOLDER, self._service.key)
            elif name.lower() not in _LEFT_OUT:
                yield name, value

    def _pass_back(
        self, client: socket.socket, server: http.client.HTTPConnection, connection: socket.socket, ask: Ask
    ) -> Ask:
        """The answer, as it comes. One that breaks off breaks off in the jail too."""
        client.settimeout(_IDLE)
        gone = threading.Thread(target=_hang_up, args=(client, connection), daemon=True)
        gone.start()
        meter = None
        try:
            with server.getresponse() as answer:
                ask = replace(ask, status=answer.status)
                meter = Meter(streamed="event-stream" in answer.getheader("Content-Type", ""))
                for piece in self._pieces(answer, meter):
                    ask = replace(ask, received=ask.received + len(piece))
                    client.sendall(piece)
        except (OSError, ValueError, http.client.HTTPException) as broke:
            ask = replace(ask, error=f"the answer broke off: {str(broke) or type(broke).__name__}")
            if ask.status is None:
                _say(client, 502, ask.error)
        finally:
            cut(client)  # wakes who waits for its end; what was sent still arrives
            gone.join()
        return replace(ask, tokens=meter and meter.tokens)

    def _pieces(self, answer: http.client.HTTPResponse, meter: Meter) -> Iterator[bytes]:
        """An answer as it goes into the jail, without the key. Raises what a broken connection raises."""
        scrub = Scrub(self._service.key)
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        lines += [f"{name}: {value}" for name, value in answer.getheaders() if name.lower() not in _LEFT_OUT]
        lines += ["Transfer-Encoding: chunked", "Connection: close", "", ""]
        yield scrub.all("\r\n".join(lines).encode("latin-1", errors="replace"))
        while data := answer.read1(_PIECE):
            yield from _chunk(scrub.next(data))
            meter.feed(data)
        meter.end()
        if answer.length:
            raise ConnectionError("it ended early")
        yield from _chunk(scrub.rest())
        yield b"0\r\n\r\n"


class Scrub:
    """Takes a key out of a stream of bytes, also where it is cut in two; bytes that cannot begin it are not held."""

    def __init__(self, key: str):
        self._key = key.encode() if len(key) >= _SHORTEST_KEY else b""
        self._held = b""

    def all(self, data: bytes) -> bytes:
        return data.replace(self._key, PLACEHOLDER.encode()) if self._key else data

    def next(self, data: bytes) -> bytes:
        data = self.all(self._held + data)
        longest = min(len(self._key) - 1, len(data))
        held = next((n for n in range(longest, 0, -1) if data.endswith(self._key[:n])), 0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


class _Incoming:
    """What a client still sends of a request, after the bytes that were read already."""

    def __init__(self, client: socket.socket, first: bytes):
        self._client, self._data = client, bytearray(first)

    def read(self, count: int) -> bytes:
        while len(self._data) < count:
            self._more()
        return self._take(count)

    def line(self) -> bytes:
        while b"\r\n" not in self._data:
            if len(self._data) > 1024:
                raise _Refused(400, "a line of the body is too long")
            self._more()
        return self._take(self._data.index(b"\r\n") + 2)[:-2]

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    def _more(self) -> None:
        more = self._client.recv(_PIECE)
        if not more:
            raise ConnectionError("the request was cut off")
        self._data += more


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of two values for one, the service might take the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _parse(head: bytes) -> tuple[str, str, list[tuple[str, str]]]:
    """(method, path and query, header fields) of a request's head."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    if not target.startswith("/"):
        parts = urlsplit(target)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _Refused(400, "a header of the request is none")
        fields.append((name, value.strip()))
    return method, target, fields


def _body(incoming: _Incoming, fields: Iterable[tuple[str, str]]) -> bytes:
    lengths = [value for name, value in fields if name.lower() == "content-length"]
    codings = [value.lower() for name, value in fields if name.lower() == "transfer-encoding"]
    if codings == ["chunked"] and not lengths:
        return _chunks(incoming)
    if codings or len(lengths) > 1 or not all(value.isdecimal() for value in lengths):
        raise _Refused(400, "the length of the request is not clear")
    return incoming.read(_bounded(int(lengths[0]))) if lengths else b""


def _chunks(incoming: _Incoming) -> bytes:
    data = bytearray()
    while True:
        try:
            size = int(incoming.line().split(b";")[0], 16)
        except ValueError:
            raise _Refused(400, "the length of the request is not clear") from None
        if size == 0:
            while incoming.line():
                continue
            return bytes(data)
        _bounded(len(data) + size)
        data += incoming.read(size)
        incoming.line()


def _bounded(size: int) -> int:
    if not 0 <= size <= _LARGEST:
        raise _Refused(413, f"the request is larger than {_LARGEST >> 20} MiB")
    return size


def _trust() -> ssl.SSLContext:
    """The authorities of this machine, and those that SSL_CERT_FILE, SSL_CERT_DIR and NODE_EXTRA_CA_CERTS name."""
    context = ssl.create_default_context()
    if more := os.environ.get("NODE_EXTRA_CA_CERTS"):
        with suppress(OSError):
            context.load_verify_locations(more)
    return context


def _hang_up(client: socket.socket, server: socket.socket) -> None:
    """End the service's answer when the client has gone: what nobody reads may still cost."""
    try:
        while client.recv(_PIECE):
            continue
    except TimeoutError:
        return
    except OSError:
        pass
    cut(server)


def cut(one: socket.socket) -> None:
    """Shut a socket that another thread may be reading, below its TLS where it has some."""
    with suppress(OSError):
        socket.socket.shutdown(one, socket.SHUT_RDWR)


def _chunk(data: bytes) -> Iterator[bytes]:
    if data:
        yield b"%x\r\n%s\r\n" % (len(data), data)


def _say(client: socket.socket, status: int, why: str) -> None:
    """An answer of ours, in the form in which both providers tell errors."""
    kind = "api_error" if status >= 500 else "permission_error"
    body = json.dumps({"type": "error", "error": {"type": kind, "code": kind, "message": f"atrex: {why}"}}).encode()
    reason = http.client.responses[status]
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    client.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
