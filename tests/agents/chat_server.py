"""A model's service, scripted: it speaks the chat-completions protocol, streaming or not, and fails as told."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@dataclass
class Say:
    """A reply: text, tool calls as (name, arguments), arguments a dict or the text as it is sent."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] | None = field(default_factory=lambda: dict(USAGE))
    reasoning: str = ""

    @property
    def finished(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass
class Fail:
    """An error reply."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Break:
    """A stream that is cut off after some text, or that says an error there."""

    text: str
    error: dict[str, Any] | None = None


@dataclass
class Raw:
    """Bytes instead of a reply."""

    data: bytes
    kind: str = "text/html"


class Hang:
    """No answer at all."""


def error(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


class ChatServer:
    """Answers each request with the next of `replies`, the last one again and again. A context manager.

    `requests` are the bodies that came, `headers` their headers, with names in lower case.
    """

    def __init__(self, replies: list[Any] | Callable[[dict[str, Any]], Any]):
        self._replies, self._lock = replies, threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._over = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _next(self, body: dict[str, Any], headers: dict[str, str]) -> Any:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            if callable(self._replies):
                return self._replies(body)
            return self._replies[min(len(self.requests), len(self._replies)) - 1]

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = owner._next(body, {name.lower(): value for name, value in self.headers.items()})
                if self.path != "/v1/chat/completions":
                    reply = Fail(404, error(f"no such path: {self.path}"))
                match reply:
                    case Hang():
                        owner._over.wait(60)
                    case Fail():
                        self._send(reply.status, json.dumps(reply.body).encode(), headers=reply.headers)
                    case Raw():
                        self._send(200, reply.data, reply.kind)
                    case Say() if not body.get("stream"):
                        self._send(200, json.dumps(_whole(body["model"], reply)).encode())
                    case _:
                        self._stream(body, reply)

            def _send(self, status: int, data: bytes, kind: str = "application/json", headers=None) -> None:
                self.send_response(status)
                for name, value in ({"Content-Type": kind, "Content-Length": str(len(data))} | (headers or {})).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, body: dict[str, Any], reply: Say | Break) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                told = bool((body.get("stream_options") or {}).get("include_usage"))
                for chunk in _pieces(body["model"], reply, told):
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                    self.wfile.flush()
                if not isinstance(reply, Break):
                    self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _calls(reply: Say) -> list[dict[str, Any]]:
    return [
        {
            "index": i,
            "id": f"call_{i}_{time.monotonic_ns()}",
            "type": "function",
            "function": {"name": name, "arguments": text if isinstance(text, str) else json.dumps(text)},
        }
        for i, (name, text) in enumerate(reply.calls)
    ]


def _whole(model: str, reply: Say) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in _calls(reply)]
    choice = {"index": 0, "message": message, "finish_reason": reply.finished}
    about = {"id": "c-1", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
    return about | ({"usage": reply.usage} if reply.usage else {})


def _pieces(model: str, reply: Say | Break, usage_told: bool):
    """Chunks of a stream: text in words; arguments in pieces, those of parallel calls by turns."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "c-1", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    if isinstance(reply, Say) and reply.reasoning:
        yield chunk({"reasoning_content": reply.reasoning})
    for word in reply.text.split(" ") if reply.text else []:
        yield chunk({"content": word + " "})
    if isinstance(reply, Break):
        if reply.error:
            yield reply.error
        return
    calls = _calls(reply)
    for call in calls:
        yield chunk({"tool_calls": [call | {"function": call["function"] | {"arguments": ""}}]})
    texts = [call["function"]["arguments"] for call in calls]
    for at in range(0, max(map(len, texts), default=0), 7):
        for i, text in enumerate(texts):
            if text[at : at + 7]:
                yield chunk({"tool_calls": [{"index": i, "function": {"arguments": text[at : at + 7]}}]})
    yield chunk({}, reply.finished)
    if usage_told and reply.usage:
        yield chunk({}) | {"choices": [], "usage": reply.usage}
