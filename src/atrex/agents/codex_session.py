"""What Codex does not print: the records of its session, and the tools that it offers to its model."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atrex.agents.jail import Jail, Service, Terms

_MOST = 64 << 20  # bytes of a session's file
_PATIENCE = 60.0  # seconds for the first request
_NESTED = re.compile(r"declare const tools: \{ (\w+)\(")
_MORE = "additional_tools"  # which are used from scripts that are given to `exec`
_KINDS = ("session_meta", "turn_context", "token_usage_record", "event_msg", "response_item")


class Sessions:
    """Reads the session files below a CODEX_HOME as they grow, those of sub-agents too.

    The agent could write there, so links are not followed, and what is no record is passed over. A reply that stands
    in several files, as after a fork of a session, is told once. To its usage is added whether it has words: `said`.
    """

    def __init__(self, home: Path):
        self._root = home / "sessions"
        self._read: dict[str, int] = {}  # bytes of each file
        self._replies: set[str] = set()
        self._said: set[str] = set()  # files whose reply under way has words

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(type, payload) of the records since the last call."""
        for folder, _, names in os.walk(self._root):
            for name in sorted(names):
                if name.startswith("rollout-") and name.endswith(".jsonl"):
                    yield from self._new(os.path.join(folder, name))

    def _new(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in self._lines(path):
            try:
                record = json.loads(line)
                kind, payload = record["type"], record["payload"]
            except (ValueError, KeyError, TypeError):
                continue
            if kind not in _KINDS or not isinstance(payload, dict):
                continue
            if kind == "response_item":
                if payload.get("type") == "message" and payload.get("role") == "assistant":
                    self._said.add(path)
                continue
            if kind == "token_usage_record":
                payload["said"] = path in self._said
                self._said.discard(path)
                reply = payload.get("response_id")
                if reply in self._replies:
                    continue
                self._replies.add(reply)
            yield kind, payload

    def _lines(self, path: str) -> list[bytes]:
        """Whole lines that are new."""
        begin = self._read.get(path, 0)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return []
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return []
            file.seek(begin)
            data = file.read(max(0, _MOST - begin))
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = begin + len(whole)
        return whole.splitlines()


def offered(
    readable: Sequence[str], prepare: Callable[[Jail], tuple[list[str], dict[str, str]]]
) -> tuple[str, ...] | None:
    """Names of the tools in the first request that the program sends, sorted; None when it sends none.

    `prepare` sets it up in a jail: (command, environment). The service there is ours, and refuses.
    """
    asked: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="atrex-") as root,
        _Service(asked) as url,
        Jail(Path(root), Terms(readable=readable, service=Service(url, "", ("POST /responses",)))) as jail,
    ):
        argv, env = prepare(jail)
        jail.start(argv, env, stdin=b"Which tools do you have?")
        with contextlib.suppress(TimeoutError):
            for _ in jail.lines(time.monotonic() + _PATIENCE):
                if asked:
                    break
    return tools_of(asked[0]) if asked else None


def tools_of(request: dict[str, Any]) -> tuple[str, ...]:
    """Names of the tools of a request to the Responses API, sorted; those within namespaces and within `exec` too."""
    return tuple(sorted(set(_names(given_tools(request)))))


def given_tools(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools of a request, those in namespaces too. Some models are told of theirs by an item of the input."""
    places = [request, *(item for item in _dicts(request.get("input")) if item.get("type") == _MORE)]
    return [tool for place in places for tool in _flat(place.get("tools"))]


def _flat(given: Any) -> Iterator[dict[str, Any]]:
    for tool in _dicts(given):
        if tool.get("type") == "namespace":
            yield from _flat(tool.get("tools"))
        else:
            yield tool


def _dicts(given: Any) -> list[dict[str, Any]]:
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _names(tools: list[dict[str, Any]]) -> Iterator[str]:
    for tool in tools:
        yield tool.get("name") or tool["type"]
        yield from _NESTED.findall(tool.get("description") or "")


class _Service:
    """A model's service on the loopback interface that keeps what it is asked and answers nobody. A context manager."""

    def __init__(self, asked: list[dict[str, Any]]):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if self.path.endswith("/responses"):
                    asked.append(json.loads(body))
                self._refuse()

            def do_GET(self) -> None:
                self._refuse()

            def _refuse(self) -> None:
                self.send_response(400)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
