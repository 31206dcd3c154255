"""`--url`: the profile endpoints that vLLM and SGLang have themselves.

vLLM: POST /start_profile and /stop_profile, there only if the server was started with a profiler configured; the body
may limit the iterations where the server is recent. SGLang: the same paths, always there, with the folder and the
number of steps in the body. Both write a trace a rank into a folder of the server's machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atrex.errors import UserError
from atrex.traces.record.window import Recorded, Window, deliver, numbered

VLLM, SGLANG = "vllm", "sglang"
KEY = "ATREX_ENGINE_KEY"  # the server's API key, where it asks for one
ANSWERING = 600.0  # seconds that an engine may take to end a recording: vLLM writes its traces before it answers
WRITING = 120.0  # seconds until a trace has to be there after that
NOTICE = 5.0  # seconds of waiting after which it is said
QUIET = 1.0  # seconds without a change after which files count as complete
_VLLM_FLAG = """--profiler-config '{"profiler": "torch", "torch_profiler_dir": "DIR"}'"""


Tell = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """A server that answers. `url` has no slash at its end."""

    url: str
    name: str

    def post(self, path: str, body: dict | None = None, timeout: float = 60.0) -> tuple[int, bytes]:
        return _ask(self.url + path, body if body is not None else b"", timeout)


def _ask(url: str, body: dict | bytes | None, timeout: float) -> tuple[int, bytes]:
    """Status and content of an answer; a body makes it a POST. Raises UserError where nobody answers."""
    headers = {"Content-Type": "application/json"} if isinstance(body, dict) else {}
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {key}"
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url, content, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"--url {url}: no answer ({reason})") from None


def detect(url: str) -> Engine:
    """Which engine answers there. Raises UserError for none, for one that wants a key, and for others."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"--url {url}: expected http://host:port")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    locked = False
    for path, name_in in (("/v1/models", _owner), ("/get_model_info", _sglang_info), ("/version", _vllm_version)):
        status, content = _ask(base + path, None, 10.0)
        locked = locked or status in (401, 403)
        try:
            name = name_in(json.loads(content)) if status == 200 else None
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            name = None
        if name in (VLLM, SGLANG):
            return Engine(base, name)
    if locked:
        raise UserError(f"--url {url}: the server asks for a key: set {KEY}")
    raise UserError(f"--url {url}: neither vLLM nor SGLang answers there; use --pid with the process of the model")


def _owner(document: Any) -> str | None:
    return document["data"][0]["owned_by"]


def _sglang_info(document: Any) -> str | None:
    return SGLANG if "model_path" in document else None


def _vllm_version(document: Any) -> str | None:
    return VLLM if set(document) == {"version"} else None


def record_url(
    url: str, window: Window, out: Path, tell: Tell = lambda line: None, folder: Path | None = None
) -> Recorded:
    """Let an engine profile itself for a window, and fetch what it wrote to `out` (further ranks beside it).

    `folder`: where the engine writes, as it is seen from here. SGLang is told it, and given a new one on this machine
    where it runs here. Where the traces cannot be reached the result has no files and a note that says where they are.
    Raises UserError where the engine does not profile.
    """
    engine = detect(url)
    if folder is not None and not folder.is_dir():
        raise UserError(f"--trace-dir {folder}: no such folder here")
    local = urlsplit(engine.url).hostname in ("localhost", "127.0.0.1", "::1")
    if engine.name == VLLM or folder is not None or not local:
        return _record(engine, window, out, tell, folder)
    made = Path(tempfile.mkdtemp(prefix="atrex-record-"))
    made.chmod(0o1777)  # the server may be another user
    try:
        return _record(engine, window, out, tell, made)
    finally:
        with contextlib.suppress(OSError):  # what could not be brought to `out` stays
            made.rmdir()


def _record(engine: Engine, window: Window, out: Path, tell: Tell, folder: Path | None) -> Recorded:
    before = _traces(folder)
    body = _vllm_body(window) if engine.name == VLLM else _sglang_body(window, folder)
    _check(engine, "/start_profile", *engine.post("/start_profile", body))
    tell(f"{engine.name} at {engine.url} records")
    began = time.monotonic()
    try:
        _hold(window, folder, before)
    finally:
        seconds = time.monotonic() - began
        status, content = engine.post("/stop_profile", timeout=ANSWERING)
    found = _written(folder, before, WRITING if status == 200 else QUIET, tell)
    if status != 200 and not found:
        _check(engine, "/stop_profile", status, content)
    away = f"the trace is on the machine of {engine.url}, in {_place(engine, folder)}; see --trace-dir"
    files = [deliver(path, numbered(out, i)) for i, path in enumerate(found)]
    details = {"engine": engine.name, "url": engine.url}
    return Recorded(files, round(seconds, 4), window.steps, [] if found else [away], details)


def _vllm_body(window: Window) -> dict | None:
    return {"max_iterations": window.steps} if window.steps else None


def _sglang_body(window: Window, folder: Path | None) -> dict:
    body: dict[str, Any] = {"activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": window.stack}
    if folder is not None:
        body["output_dir"] = str(folder.resolve())
    if window.steps:
        body["num_steps"] = window.steps
    return body


def _check(engine: Engine, path: str, status: int, content: bytes) -> None:
    if status == 200:
        return
    where = f"--url {engine.url}: {engine.name}"
    if status == 404 and engine.name == VLLM:
        raise UserError(
            f"{where} was started without a profiler: start it with {_VLLM_FLAG} "
            "(older ones: VLLM_TORCH_PROFILER_DIR=DIR), or use --pid, which needs no restart"
        )
    if status == 404:
        raise UserError(f"{where} has no {path}: its version is too old; use --pid")
    if status in (401, 403):
        raise UserError(f"{where} asks for a key: set {KEY}")
    said = " ".join(content.decode(errors="replace").split())[:200]
    raise UserError(f"{where} answered {status} to {path}: {said or 'nothing more'}")


def _hold(window: Window, folder: Path | None, before: dict[Path, tuple]) -> None:
    """The window: its seconds, or until an engine that counts steps has written its traces."""
    deadline = time.monotonic() + window.seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
        if window.steps and _written(folder, before, 0.0):
            return


def _traces(folder: Path | None) -> dict[Path, tuple]:
    """The traces in a folder with their size and time."""
    if folder is None:
        return {}
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith((".json", ".json.gz")) and not path.is_symlink():
            about = path.stat()
            found[path] = (about.st_size, about.st_mtime_ns)
    return found


def _written(
    folder: Path | None, before: dict[Path, tuple], patience: float, tell: Tell = lambda line: None
) -> list[Path]:
    """Traces that are new and complete: the same for a while. Ranks write one each, at about the same time."""
    if folder is None:
        return []
    deadline, noticed = time.monotonic() + patience, time.monotonic() + NOTICE
    last, since = {}, time.monotonic()
    while True:
        found = {p: about for p, about in _traces(folder).items() if about[0] and before.get(p) != about}
        if found != last:
            last, since = found, time.monotonic()
        if found and time.monotonic() - since >= QUIET:
            return list(found)
        if not found and time.monotonic() > deadline:
            return []
        if not found and time.monotonic() > noticed:
            tell(f"waiting for the trace in {folder}")
            noticed = deadline + 1
        time.sleep(0.05)


def _place(engine: Engine, folder: Path | None) -> str:
    if folder is not None:
        return str(folder)
    if engine.name == VLLM:
        return "the torch_profiler_dir of its --profiler-config"
    return "its SGLANG_TORCH_PROFILER_DIR, or its temporary folder where that is not set"
