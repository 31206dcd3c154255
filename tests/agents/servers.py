"""Servers that speak the providers' protocols and answer with turns that a test has written down.

`Anthropic` speaks the Messages API, `OpenAI` the Responses API, both streamed; every request that came is kept.
"""

from __future__ import annotations

import http.server
import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

JSON = "application/json"


@dataclass(frozen=True)
class Say:
    """A piece of text in a turn."""

    text: str


@dataclass(frozen=True)
class Use:
    """A tool that a turn calls. `arguments` is a dict, or the text of a tool that takes no JSON."""

    tool: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True)
class Think:
    """Reasoning in a turn."""

    text: str


@dataclass(frozen=True)
class Turn:
    """One reply. Tokens: `fresh` and `cached` went in, `output` came out, `reasoning` of them."""

    parts: tuple[Say | Use | Think, ...]
    fresh: int = 100
    cached: int = 0
    output: int = 10
    reasoning: int = 0


@dataclass(frozen=True)
class Refuse:
    """An error in place of a reply."""

    status: int
    kind: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)


Step = Turn | Refuse | Callable[[dict[str, Any]], Turn | Refuse]


class Scripted:
    """Serves on a free port of the loopback interface until closed; a context manager.

    `steps` are the answers to an agent's requests, in their order; the last one is repeated. A step that is a function
    is given the request's body. Requests beside its work (titles, summaries) are answered with a word. With
    `certificate` (files of a certificate and its key) it speaks TLS, as "localhost".
    """

    path: ClassVar[str]

    def __init__(self, steps: Iterable[Step], certificate: tuple[str, str] | None = None):
        self._steps: Iterator[Step] = iter(steps)
        self._last: Step = Turn((Say("Nothing was written down."),))
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []  # as they were sent
        self.other: list[str] = []  # paths that no model answers
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer._answer(self)

            def do_GET(self):
                outer._elsewhere(self)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://localhost:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tools(self) -> list[str]:
        """Names of the tools that the first request offered, sorted."""
        return sorted(tool.get("name") or tool["type"] for tool in self.requests[0]["tools"])

    def _is_agents(self, body: dict[str, Any]) -> bool:
        return True

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"] or 0)) or b"{}")
        if handler.path.split("?")[0] != self.path:
            self._elsewhere(handler)
            return
        with self._lock:
            self.keys.append(handler.headers.get("x-api-key") or handler.headers.get("Authorization", ""))
            if self._is_agents(body):
                self.requests.append(body)
                self._last = next(self._steps, self._last)
                step = self._last
            else:
                step = Turn((Say("Kernel"),), fresh=7, output=3)
        step = step(body) if callable(step) else step
        if isinstance(step, Refuse):
            self._send(handler, step.status, self._error(step), step.headers | {"Content-Type": JSON})
        else:
            self._stream(handler, self._events(step, body.get("model", "")))

    def _elsewhere(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.other.append(handler.path)
        self._send(handler, 404, b"{}", {"Content-Type": JSON})

    @staticmethod
    def _send(handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    @staticmethod
    def _stream(handler: http.server.BaseHTTPRequestHandler, events: Iterable[dict[str, Any]]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for event in events:
            handler.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            handler.wfile.flush()

    def _error(self, refusal: Refuse) -> bytes:
        raise NotImplementedError

    def _events(self, turn: Turn, model: str) -> Iterator[dict[str, Any]]:
        raise NotImplementedError


class Anthropic(Scripted):
    """The Messages API: https://docs.anthropic.com/en/api/messages-streaming."""

    path = "/v1/messages"

    def _is_agents(self, body: dict[str, Any]) -> bool:
        return bool(body.get("tools"))

    def _error(self, refusal: Refuse) -> bytes:
        return json.dumps({"type": "error", "error": {"type": refusal.kind, "message": refusal.message}}).encode()

    def _events(self, turn: Turn, model: str) -> Iterator[dict[str, Any]]:
        number = next(self._numbers)
        usage = {
            "input_tokens": turn.fresh,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": turn.cached,
            "output_tokens": 1,
        }
        message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": model, "content": []}
        yield {
            "type": "message_start",
            "message": message | {"stop_reason": None, "stop_sequence": None, "usage": usage},
        }
        for index, part in enumerate(turn.parts):
            start, deltas = self._block(part, f"toolu_{number:04}_{index}")
            yield {"type": "content_block_start", "index": index, "content_block": start}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        stop = "tool_use" if any(isinstance(part, Use) for part in turn.parts) else "end_turn"
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": turn.output},
        }
        yield {"type": "message_stop"}

    @staticmethod
    def _block(part: Say | Use | Think, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if isinstance(part, Say):
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part.text}]
        if isinstance(part, Think):
            deltas = [
                {"type": "thinking_delta", "thinking": part.text},
                {"type": "signature_delta", "signature": "c2lnbmVk"},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        start = {"type": "tool_use", "id": name, "name": part.tool, "input": {}}
        return start, [{"type": "input_json_delta", "partial_json": json.dumps(part.arguments)}]


class OpenAI(Scripted):
    """The Responses API: https://platform.openai.com/docs/api-reference/responses-streaming."""

    path = "/v1/responses"

    def _error(self, refusal: Refuse) -> bytes:
        return json.dumps({"error": {"type": refusal.kind, "code": refusal.kind, "message": refusal.message}}).encode()

    def _events(self, turn: Turn, model: str) -> Iterator[dict[str, Any]]:
        number = next(self._numbers)
        response = {"id": f"resp_{number:04}", "object": "response", "model": model, "output": []}
        yield {"type": "response.created", "response": response | {"status": "in_progress"}}
        items = [self._item(part, f"{number:04}_{index}") for index, part in enumerate(turn.parts)]
        for index, item in enumerate(items):
            yield {"type": "response.output_item.added", "output_index": index, "item": item}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        usage = {
            "input_tokens": turn.fresh + turn.cached,
            "input_tokens_details": {"cached_tokens": turn.cached},
            "output_tokens": turn.output,
            "output_tokens_details": {"reasoning_tokens": turn.reasoning},
            "total_tokens": turn.fresh + turn.cached + turn.output,
        }
        done = response | {"status": "completed", "output": items, "usage": usage}
        yield {"type": "response.completed", "response": done}

    @staticmethod
    def _item(part: Say | Use | Think, name: str) -> dict[str, Any]:
        if isinstance(part, Say):
            content = [{"type": "output_text", "text": part.text, "annotations": []}]
            return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"} | {
                "content": content
            }
        if isinstance(part, Think):
            summary = [{"type": "summary_text", "text": part.text}]
            return {"type": "reasoning", "id": f"rs_{name}", "summary": summary}
        call = {"call_id": f"call_{name}", "name": part.tool, "status": "completed"}
        if isinstance(part.arguments, str):
            return {"type": "custom_tool_call", "id": f"ctc_{name}", "input": part.arguments} | call
        return {"type": "function_call", "id": f"fc_{name}", "arguments": json.dumps(part.arguments)} | call
