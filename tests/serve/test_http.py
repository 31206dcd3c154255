"""Who is answered: the token, hosts, bodies. The judge is not needed for that."""

import asyncio
import json

import pytest

pytest.importorskip("starlette", reason="needs atrex[serve]")

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.engine import Terms
from atrex.problems.load import load_suite
from atrex.serve.access import is_loopback
from atrex.serve.http import App
from atrex.serve.order import Limits
from atrex.serve.service import Service

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def service():
    """A service with no judge, that nobody takes orders from."""
    return Service([], Terms(b"", 1, Budgets()), Limits(source=1000, queue=1))


@pytest.fixture(scope="module")
def ask(service):
    """ask(method, path, body, token=..., **headers) -> (status, answer) of an app without or with a token."""
    apps = {token: App(service, load_suite(), "cpu", Budgets(), token).asgi for token in (None, TOKEN)}

    def asked(method, path, body=b"", token=None, leave=False, **headers):
        headers = {"host": "127.0.0.1:8600", "content_type": "application/json"} | headers
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "query_string": b"",
            "scheme": "http",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent = []

        async def receive():
            if events:
                return events.pop(0)
            if not leave:
                await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        asyncio.run(asyncio.wait_for(apps[token](scope, receive, send), 20))
        text = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(text) if text else None

    return asked


def body(**asked):
    return json.dumps({"candidate": "", "problem": "rms_norm", "shapes": "46"} | asked).encode()


def test_health_says_how_many_wait(ask):
    status, answer = ask("GET", "/health")
    assert status == 200 and answer["waiting"] == 0


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}])
def test_with_a_token_nobody_is_answered_without_it(ask, given):
    for method, path in (("GET", "/health"), ("POST", "/judge")):
        status, answer = ask(method, path, body(), token=TOKEN, **given)
        assert status == 401 and TOKEN not in answer["error"]


def test_the_token_opens_the_service_under_any_host_name(ask):
    assert ask("GET", "/health", token=TOKEN, authorization=f"Bearer {TOKEN}", host="judge.lan")[0] == 200


@pytest.mark.parametrize("host", ["evil.example:8600", "10.0.0.1", ""])
def test_without_a_token_a_name_that_is_not_loopback_is_refused(ask, host):
    assert ask("POST", "/judge", body(), host=host)[0] == 403


def test_a_form_that_a_browser_sends_unasked_is_refused(ask):
    assert ask("POST", "/judge", body(), content_type="text/plain")[0] == 422


def test_a_body_over_the_limit_is_413(ask):
    status, answer = ask("POST", "/judge", b" " * 200_000)
    assert status == 413 and "more than" in answer["error"]


def test_a_full_queue_is_429(ask, service):
    from atrex.serve.order import Order

    job = service.submit(Order([], service.terms))
    try:
        status, answer = ask("POST", "/judge", body())
    finally:
        service.abandon(job)
    assert status == 429 and "try again" in answer["error"]


def test_who_leaves_while_waiting_leaves_the_queue(ask, service):
    ask("POST", "/judge", body(), leave=True)
    assert service.state()["waiting"] == 0


def test_an_unknown_path_is_one_line_of_json(ask):
    assert ask("GET", "/nothing")[0] == 404 and "error" in ask("GET", "/nothing")[1]


def test_only_loopback_addresses_are_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.com", "127.0.0.1.example.com"]))
