"""HTTP around the service: POST /judge, GET /health. Every refusal is ``{"error": "one line"}``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import atrex
from atrex.evaluate.budgets import Budgets
from atrex.problems.model import Suite
from atrex.serve.access import bears, sent_to_loopback
from atrex.serve.order import Order, Refused, read_order
from atrex.serve.service import Job, Service, Unfinished

_BODY_SECONDS = 30.0


class App:
    """The service's routes. Without a `token` only requests that were sent to a loopback name are answered."""

    def __init__(self, service: Service, suite: Suite, device_type: str, budgets: Budgets, token: str | None):
        self.service, self.suite, self.device_type, self.budgets = service, suite, device_type, budgets
        self._token = token.encode() if token else None
        self._planner = ThreadPoolExecutor(1, "plan")  # folders' own Python runs there, one call at a time
        self.asgi = Starlette(
            routes=[
                Route("/judge", self._guarded(self.judge), methods=["POST"]),
                Route("/health", self._guarded(self.health), methods=["GET"]),
            ],
            exception_handlers={HTTPException: _plain, Exception: _plain},
        )

    async def health(self, request: Request) -> Response:
        return JSONResponse({"atrex": atrex.__version__, **self.service.state()})

    async def judge(self, request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise Refused(422, "content-type: expected application/json")  # also what a browser asks leave for
        body = await _body(request, self.service.limits.body)
        order = await asyncio.get_running_loop().run_in_executor(self._planner, self._order, body)
        job = self.service.submit(order)
        try:
            left = await _left(request, job)
        except asyncio.CancelledError:
            self.service.abandon(job)
            raise
        if left:
            self.service.abandon(job)
            return Response(status_code=499)  # nobody reads it
        records = job.result.result()
        seeds = order.terms.seeds
        return JSONResponse(
            {
                "units": [record.model_dump(mode="json") for record in records],
                "seeds_commitment": seeds.commitment,
                "seeds": seeds.secret.hex(),
            }
        )

    def _order(self, body: bytes) -> Order:
        service = self.service
        return read_order(body, self.suite, self.device_type, service.limits, self.budgets, service.terms)

    # -- who may ask -----------------------------------------------------------------------------------------------

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._admit(request)
                return await answer(request)
            except Refused as refused:
                return _refusal(refused)

        return guarded

    def _admit(self, request: Request) -> None:
        if self._token is None:
            if not sent_to_loopback(request.headers.get("host", "")):
                raise Refused(403, "host: without a token only requests to a loopback address are answered")
            return
        if not bears(request.headers.get("authorization", ""), self._token):
            raise Refused(401, "authorization: expected Bearer and the service's token")


def _refusal(refused: Refused) -> Response:
    answer: dict[str, object] = {"error": refused.line}
    if isinstance(refused, Unfinished):
        answer["units"] = [record.model_dump(mode="json") for record in refused.records]
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "10"}}.get(refused.status)
    return JSONResponse(answer, refused.status, headers)


async def _plain(request: Request, error: Exception) -> Response:
    status, line = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "internal error")
    return JSONResponse({"error": line}, status)


async def _body(request: Request, limit: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise Refused(413, f"body: more than {limit} bytes")
    except TimeoutError:
        raise Refused(408, f"body: not there within {_BODY_SECONDS:g} s") from None
    return bytes(body)


async def _left(request: Request, job: Job) -> bool:
    """Wait for the job's end; whether the client has gone before it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watcher = asyncio.ensure_future(gone())
    result = asyncio.wrap_future(job.result)
    try:
        await asyncio.wait({watcher, result}, return_when=asyncio.FIRST_COMPLETED)
        return not result.done()
    finally:
        watcher.cancel()
        if result.done() and not result.cancelled():
            result.exception()  # looked at: the caller takes it from the job
        elif not result.done():
            result.add_done_callback(lambda f: f.cancelled() or f.exception())
