"""HTTP around the live pages: pages and data by GET, changes as server-sent events, a token where others can ask.

Without a token only requests that were sent to a loopback name are answered. With one, a program sends it as a bearer,
and a browser is given a form once, whose cookie holds for this service.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator
from html import escape
from pathlib import PurePosixPath
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from atrex.report.site.live import EVENTS, Live
from atrex.report.site.page import PLOTLY
from atrex.serve.access import bears, sent_to_loopback

ENTER = "/enter"
EVERY = 1.0  # seconds between two looks at the files
_BEAT = 15.0  # seconds between comments that keep a connection open
_FORM_BYTES = 4096
# What the judge and agents wrote is shown as text, whatever it holds.
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
          ".csv": "text/csv"}  # fmt: skip
_ALONE = "default-src 'none'; sandbox"


class App:
    """The routes, and the watch over the files: `asgi` is what a server runs. It looks only while somebody listens."""

    def __init__(self, live: Live, token: str | None = None, every: float = EVERY):
        self.live, self._every = live, every
        self._token = token.encode() if token else None
        self._cookie = f"atrex-{hashlib.sha256(self._token).hexdigest()[:12]}" if self._token else ""
        self._listeners: set[asyncio.Queue[frozenset[str]]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.asgi = Starlette(
            routes=[
                Route(EVENTS, self.events, methods=["GET"]),
                Route(ENTER, self.enter, methods=["POST"]),
                Route("/{path:path}", self.file, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _plain, Exception: _plain},
        )

    async def file(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        path = request.path_params["path"]
        path = f"{path}index.html" if not path or path.endswith("/") else path
        content = await run_in_threadpool(self.live.read, path)
        if content is None:
            raise HTTPException(404, "no such page")
        kind = _TYPES.get(PurePosixPath(path).suffix, "text/plain")
        headers = _headers("max-age=86400" if path == PLOTLY else "no-store")
        if kind != "text/html":
            headers["Content-Security-Policy"] = _ALONE
        return Response(content, media_type=kind, headers=headers)

    async def events(self, request: Request) -> Response:
        """`changed` events, for a page of one part of the site with `?part=`, else for all of it."""
        if refusal := self._refusal(request):
            return refusal
        headers = _headers("no-store") | {"X-Accel-Buffering": "no"}
        part = request.query_params.get("part")
        return StreamingResponse(self._told(part), media_type="text/event-stream", headers=headers)

    async def enter(self, request: Request) -> Response:
        """Take the token from the form; a cookie that is derived from it opens the pages from then on."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _FORM_BYTES:
                raise HTTPException(413, "the form: too long")
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip().encode()
        if self._token is None or not hmac.compare_digest(given, self._token):
            return self._form("That is not the token.")
        answer = RedirectResponse("/", 303, headers=_headers("no-store"))
        answer.set_cookie(self._cookie, self._session(), httponly=True, samesite="lax", path="/")
        return answer

    # -- who may ask -----------------------------------------------------------------------------------------------

    def _refusal(self, request: Request) -> Response | None:
        if self._token is None:
            if not sent_to_loopback(request.headers.get("host", "")):
                return PlainTextResponse("host: without a token only requests to a loopback address are answered", 403)
            return None
        if bears(request.headers.get("authorization", ""), self._token):
            return None
        if hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._session().encode()):
            return None
        return self._form("")

    def _session(self) -> str:
        return hmac.new(self._token or b"", b"atrex serve", hashlib.sha256).hexdigest()

    def _form(self, line: str) -> Response:
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Atrex</title>'
            f"<main><h1>Atrex</h1><p>{escape(line)}</p>"
            f'<form method="post" action="{ENTER}"><label>Token <input type="password" name="token" autofocus></label> '
            "<button>Enter</button></form></main></html>"
        )
        headers = _headers("no-store") | {"WWW-Authenticate": "Bearer"}
        headers["Content-Security-Policy"] = "default-src 'none'; form-action 'self'"
        return HTMLResponse(page, 401, headers)

    # -- events ----------------------------------------------------------------------------------------------------

    async def _told(self, part: str | None) -> AsyncIterator[str]:
        mine: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self._listeners.add(mine)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield "retry: 2000\n\n"
            while True:
                try:
                    changed = await asyncio.wait_for(mine.get(), _BEAT)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if part is None or part in changed:
                    yield f"event: changed\ndata: {quote(' '.join(sorted(changed)), safe=' /')}\n\n"
        finally:
            self._listeners.discard(mine)

    async def _watch(self) -> None:
        """Tell listeners what is due, once for each time it was built, and again after a while if nobody asked."""
        said: dict[str, tuple[int, float]] = {}
        while self._listeners:
            began = time.monotonic()
            due = await run_in_threadpool(self.live.due)
            now = time.monotonic()
            built = {part: self.live.built(part) for part in due}
            new = frozenset(
                part for part in due if part not in said or said[part][0] != built[part] or now - said[part][1] >= _BEAT
            )
            said |= {part: (built[part], now) for part in new}
            for listener in self._listeners if new else ():
                listener.put_nowait(new)
            await asyncio.sleep(max(self._every, 10 * (now - began)))


def _headers(cache: str) -> dict[str, str]:
    return {"Cache-Control": cache, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


async def _plain(request: Request, error: Exception) -> Response:
    status, line = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "internal error")
    return PlainTextResponse(line, status)
