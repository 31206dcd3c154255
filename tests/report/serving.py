"""A server of live pages on a free port, in a thread, and a client that needs nothing but Python."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from atrex.report.site.live import Live
from atrex.report.site.server import App
from atrex.serve.access import listen


class Served:
    """`live` is what is behind the port."""

    def __init__(self, live: Live, port: int):
        self.live, self.port = live, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str):
        """(status, headers, text) of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        connection.close()
        return answer.status, answer.headers, text

    @contextmanager
    def events(self, part: str) -> Iterator[http.client.HTTPResponse]:
        """A stream of server-sent events; lines are read with `readline`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", f"/events?part={part}")
        try:
            yield connection.getresponse()
        finally:
            connection.close()


@contextmanager
def serving(root: Path, token: str | None = None, every: float = 0.1) -> Iterator[Served]:
    """Serve the pages over a folder, looking at its files `every` so many seconds."""
    live = Live(root, rest=0, every=every)
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(App(live, token, every).asgi, log_level="error", lifespan="off", ws="none",
                            timeout_graceful_shutdown=1)  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Served(live, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
