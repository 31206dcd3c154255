"""The model's service from within a jail: answers come as they are sent, and the key is never where the program is."""

from __future__ import annotations

import http.server
import json
import threading
import time

import pytest

from atrex.agents.claude import _beyond as beyond_claude
from atrex.agents.codex import _beyond as beyond_codex
from atrex.agents.jail import PLACEHOLDER, Service
from atrex.agents.jail.meter import Meter
from atrex.agents.jail.service import Scrub

KEY = "sk-real-0123456789abcdef"
REQUESTS = ("POST /v1/messages",)


class _Model(http.server.BaseHTTPRequestHandler):
    """Answers as the test's `script` says; keeps what came."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.came.append((self.path, dict(self.headers), body))
        self.server.script(self)

    def whole(self, status: int, body: bytes, **fields: str):
        self.send_response(status)
        for name, value in (fields | {"Content-Length": str(len(body))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def piece(self, data: bytes):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


@pytest.fixture
def model():
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    served.came, served.script = [], lambda handler: handler.whole(200, b"{}")
    served.url = f"http://127.0.0.1:{served.server_address[1]}"
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


@pytest.fixture
def ask(inside, model):
    """Runs a script in a jail that has the service: `post(body, path, **headers)` is there. (printed lines, notes)."""

    def run(source: str, refuses=None, url: str | None = None):
        service = Service(url or model.url, KEY, REQUESTS, refuses)
        env = {"BASE": service.inside, "MODEL_API_KEY": PLACEHOLDER}
        status, lines, jail = inside(_POST + source, env=env, service=service)
        assert status == 0, lines
        return lines, jail.asked

    return run


_POST = """
import http.client, json, os, urllib.parse
at = urllib.parse.urlsplit(os.environ["BASE"])
def post(body={"model": "m"}, path="/v1/messages", **headers):
    headers = {"x-api-key": os.environ["MODEL_API_KEY"]} | {n.replace("_", "-"): v for n, v in headers.items()}
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=20)
    connection.request("POST", at.path + path, body if isinstance(body, bytes) else json.dumps(body), headers)
    return connection.getresponse()
"""


def test_the_service_is_given_the_key_and_the_program_never(ask, model):
    lines, (note,) = ask(
        "import glob\nprint(post({'model': 'm-1'}, '/v1/messages?beta=true').status)\nprint(dict(os.environ))\n"
        "for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: print(open(path, 'rb').read())\n    except OSError: pass\n"
    )
    ((path, headers, body),) = model.came
    assert (path, headers["x-api-key"], json.loads(body)) == ("/v1/messages?beta=true", KEY, {"model": "m-1"})
    assert lines[0] == "200" and PLACEHOLDER in lines[1] and KEY not in "".join(lines)
    assert (note.allowed, note.path, note.model, note.status) == (True, "/v1/messages", "m-1", 200)
    assert note.sent == len(body) and note.received > 0 and KEY not in repr(note)


def test_a_bearers_key_is_put_in_and_another_one_is_left_out(ask, model):
    ask("post(Authorization='Bearer ' + os.environ['MODEL_API_KEY'], x_api_key='of-its-own', Cookie='a=b').read()")
    ((_, headers, _),) = model.came
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert not {"x-api-key", "cookie"} & {name.lower() for name in headers}


def test_an_answer_comes_in_pieces_as_it_is_sent(ask, model):
    shown = threading.Event()

    def script(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.piece(b"data: first\n\n")
        shown.wait(15)  # until the program has asked again: it has read the first piece by then
        handler.piece(b"data: second\n\n")
        handler.piece(b"")

    def second(handler):
        shown.set()
        handler.whole(200, b"{}")

    model.script = lambda handler: (script if len(model.came) == 1 else second)(handler)
    lines, _ = ask(
        "answer = post()\nprint(answer.headers['content-type'], answer.readline(), answer.readline())\n"
        "post().read()\nprint(answer.read())"
    )
    assert lines == ["text/event-stream b'data: first\\n' b'\\n'", "b'data: second\\n\\n'"] and shown.is_set()


def test_a_rate_limit_comes_through_with_its_wait(ask, model):
    model.script = lambda handler: handler.whole(429, b'{"error": "slow down"}', retry_after="7")
    lines, (note,) = ask("a = post()\nprint(a.status, a.headers['retry-after'], a.read().decode())")
    assert lines == ['429 7 {"error": "slow down"}'] and note.status == 429


def test_a_service_that_repeats_the_key_does_not_tell_it(ask, model):
    def script(handler):
        handler.send_response(200)
        handler.send_header("X-Echo", KEY)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.piece(b"your key is " + KEY[:9].encode())
        time.sleep(0.2)
        handler.piece(KEY[9:].encode() + b", and sk-re")
        handler.piece(b"")

    model.script = script
    lines, _ = ask("a = post()\nprint(a.headers['x-echo'], a.read().decode())")
    assert lines == [f"{PLACEHOLDER} your key is {PLACEHOLDER}, and sk-re"]


def test_an_answer_that_breaks_off_is_no_whole_one(ask, model):
    def script(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    model.script = script
    lines, (note,) = ask("try: post().read()\nexcept http.client.IncompleteRead as e: print('broken', e.partial)")
    assert lines == ["broken b'half'"] and "broke off" in note.error


def test_a_program_that_hangs_up_ends_the_answer(ask, model):
    ended = threading.Event()

    def script(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            for _ in range(300):
                handler.piece(b"more")
                time.sleep(0.05)
        except OSError:
            ended.set()

    model.script = script
    ask("import time\na = post()\na.close()\ntime.sleep(2)")
    assert ended.wait(5)


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("post(path='/v1/files')", 403),
        ("post(path='/v1/messages/../files')", 403),
        ("post(path='/V1/messages')", 403),
        ("post(b'not json')", 400),
        ("post(b'[' * 100000)", 400),
        ("post({'model': 'm', 'tools': 'web'})", 403),
        ('post(b\'{"tools": "web", "tools": ""}\')', 400),
        ("post(b'{}', Content_Length='1, 2')", 400),
        ("post(b'', Content_Length='99999999999')", 413),
    ],
)
def test_what_may_not_be_asked_reaches_no_service(ask, model, call, status):
    lines, (note,) = ask(f"print({call}.status)", lambda body: "no tools" if body.get("tools") else None)
    assert lines == [str(status)] and model.came == [] and not note.allowed and note.error


def test_another_host_stays_out_of_reach_beside_the_service(ask, model):
    source = f"""
import socket
s = socket.create_connection((at.hostname, at.port), timeout=10)
s.sendall(b"CONNECT {model.url[7:]} HTTP/1.1\\r\\n\\r\\n")
print(s.recv(4096).split(b"\\r\\n")[0].decode())
"""
    lines, (note,) = ask(source)
    assert lines == ["HTTP/1.1 403 Forbidden"] and not note.allowed and model.came == []


def test_a_request_as_to_a_proxy_reaches_the_service_too(ask, model):
    source = "c = http.client.HTTPConnection(at.hostname, at.port, timeout=9)\n"
    source += "c.request('POST', os.environ['BASE'] + '/v1/messages', '{}')\nprint(c.getresponse().status)"
    lines, _ = ask(source)
    assert lines == ["200"] and [path for path, _, _ in model.came] == ["/v1/messages"]


def test_a_service_out_of_reach_is_an_answer_of_a_gateway(ask, model):
    lines, (note,) = ask("a = post()\nprint(a.status, a.read().decode())", url="http://127.0.0.1:9")
    assert lines[0].startswith("502 ") and "is not reached" in lines[0] and note.allowed and note.error


def test_the_path_of_a_base_url_is_kept(ask, model):
    lines, _ = ask("print(at.path, post().status)", url=f"{model.url}/gateway")
    assert lines == ["/gateway 200"] and model.came[0][0] == "/gateway/v1/messages"


def test_a_key_is_found_wherever_it_is_cut():
    text = f"a{KEY}b{KEY[:-1]}{KEY}".encode()
    for size in range(1, len(text)):
        scrub = Scrub(KEY)
        out = b"".join(scrub.next(text[i : i + size]) for i in range(0, len(text), size)) + scrub.rest()
        assert out == f"a{PLACEHOLDER}b{KEY[:-1]}{PLACEHOLDER}".encode()


def test_what_cannot_begin_the_key_is_not_held_back():
    assert Scrub(KEY).next(b"data: whole\n\n") == b"data: whole\n\n"


@pytest.mark.parametrize(
    ("beyond", "tools"),
    [
        (beyond_claude, {"tools": [{"name": "Bash"}, {"type": "web_search_20250305", "name": "web_search"}]}),
        (beyond_claude, {"mcp_servers": [{"url": "https://example.com"}]}),
        (beyond_codex, {"tools": [{"type": "web_search"}]}),
        (beyond_codex, {"input": [{"type": "additional_tools", "tools": [{"type": "code_interpreter"}]}]}),
        (beyond_codex, {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}),
    ],
)
def test_tools_that_the_service_runs_are_refused_under_the_default_policy(beyond, tools):
    assert "--policy default" in beyond(tools)


@pytest.mark.parametrize(
    ("beyond", "tools"),
    [
        (beyond_claude, {"tools": [{"name": "Bash", "input_schema": {}}, {"type": "custom", "name": "Read"}]}),
        (beyond_claude, {"model": "m"}),
        (beyond_codex, {"tools": [{"type": "function", "name": "exec_command"}, {"type": "custom", "name": "patch"}]}),
    ],
)
def test_tools_that_run_in_the_jail_are_not(beyond, tools):
    assert beyond(tools) is None


STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":10,'
    b'"cache_read_input_tokens":200,"cache_creation_input_tokens":5,"output_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"delta":{"text":"the \\"usage\\" of it"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":40}}\n\n'
)


@pytest.mark.parametrize(
    ("streamed", "answer", "tokens"),
    [
        (True, STREAM, 10 + 200 + 5 + 40),
        (
            True,
            b'data: {"type":"response.completed","response":{"usage":{"input_tokens":7,"output_tokens":3}}}\n\n',
            10,
        ),
        (False, json.dumps({"usage": {"input_tokens": 7, "output_tokens": 3}}, indent=2).encode(), 10),
        (False, b'{"input_tokens": 7}', None),
        (True, b'data: {"usage": nonsense\n\ndata: {"usage": [1]}\n\n', None),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_tokens_are_read_as_the_answer_passes(streamed, answer, tokens, size):
    meter = Meter(streamed)
    for at in range(0, len(answer), size):
        meter.feed(answer[at : at + size])
    meter.end()
    assert meter.tokens == tokens


def test_the_tokens_of_an_answer_are_noted(ask, model):
    model.script = lambda handler: handler.whole(200, STREAM, Content_Type="text/event-stream")
    _, (note,) = ask("post().read()")
    assert note.tokens == 255
