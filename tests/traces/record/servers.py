"""HTTP servers that speak the profile protocols of vLLM and SGLang, and write a small trace as they would."""

from __future__ import annotations

import gzip
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TRACE = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}


class Server:
    """What both have. `calls`: (method, path, body) of every request; `refuse`: path -> (status, content)."""

    owner = ""

    def __init__(self, folder: Path | None = None, ranks: int = 1) -> None:
        self.folder, self.ranks = folder, ranks
        self.calls: list[tuple[str, str, dict | None]] = []
        self.refuse: dict[str, tuple[int, str]] = {}
        self.key = ""
        self.profiling = False

    def answer(self, method: str, path: str, body: dict | None, headers) -> tuple[int, str]:
        self.calls.append((method, path, body))
        if self.key and headers.get("Authorization") != f"Bearer {self.key}":
            return 401, '{"error": "Unauthorized"}'
        if path in self.refuse:
            return self.refuse[path]
        if path == "/v1/models":
            return 200, json.dumps({"object": "list", "data": [{"id": "m", "owned_by": self.owner}]})
        if method == "POST" and path == "/start_profile":
            return self.start(body or {})
        if method == "POST" and path == "/stop_profile":
            return self.stop()
        return 404, '{"detail": "Not Found"}'

    def write(self, name: str) -> None:
        with gzip.open(self.folder / name, "wt") as file:
            json.dump(TRACE, file)

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _ in self.calls]

    def body_of(self, path: str) -> dict | None:
        return next(body for _, called, body in self.calls if called == path)


class Vllm(Server):
    """vLLM started with --profiler-config; `configured` False: without, so the routes are not there."""

    owner, configured = "vllm", True

    def start(self, body):
        if not self.configured:
            return 404, '{"detail": "Not Found"}'
        if set(body) - {"profile_prefix", "delay_iterations", "max_iterations"}:
            return 422, '{"detail": "Extra inputs are not permitted"}'
        self.profiling = True
        return 200, ""

    def stop(self):
        time.sleep(0.2)  # it answers when the traces are written
        for rank in range(self.ranks):
            self.write(f"host_{rank}.{time.time_ns()}.pt.trace.json.gz")
        self.profiling = False
        return 200, ""


class Sglang(Server):
    """SGLang: the folder comes with the request, `num_steps` ends it, and stop answers before the traces are there."""

    owner = "sglang"

    def start(self, body):
        if self.profiling:
            return 400, "Profiling is already in progress. Call /stop_profile first."
        self.profiling = True
        self.folder = Path(body["output_dir"]) if "output_dir" in body else self.folder
        if "num_steps" in body:
            threading.Timer(0.3, self.finish).start()
        return 200, "Start profiling.\n"

    def stop(self):
        if not self.profiling:
            return 400, "Profiling is not in progress. Call /start_profile first."
        threading.Timer(0.3, self.finish).start()
        return 200, "Stop profiling. This will take some time.\n"

    def finish(self):
        self.profiling = False
        for rank in range(self.ranks):
            self.write(f"1764466000.123-TP-{rank}.trace.json.gz")


@contextmanager
def serving(server: Server):
    """The address of a server that runs meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.respond()

        def do_POST(self):
            self.respond()

        def respond(self):
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = server.answer(
                self.command, self.path, json.loads(content) if content else None, self.headers
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
