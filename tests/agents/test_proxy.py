"""The one way out: hosts on the list through the proxy, and nothing else, whatever a program tries."""

from __future__ import annotations

import http.server
import threading

import pytest

from atrex.agents.jail.proxy import parse_host


class _Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"path {self.path} host {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served.server_address[1]
    served.shutdown()


GET = """
import urllib.request, urllib.error
try: print(urllib.request.urlopen("http://127.0.0.1:{port}/a?b=1", timeout=10).read().decode())
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
"""
CONNECT = """
import socket
s = socket.create_connection(("127.0.0.1", 3128), timeout=10)
s.sendall(b"CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n")
answer = s.recv(4096).split(b"\\r\\n")[0].decode()
print(answer)
if " 200 " in answer:
    s.sendall(b"GET /tunnel HTTP/1.0\\r\\nHost: inside\\r\\n\\r\\n")
    data = b""
    while more := s.recv(4096): data += more
    print(data.split(b"\\r\\n\\r\\n")[1].decode())
"""


def test_a_listed_host_answers_a_plain_request(inside, server):
    status, lines, jail = inside(GET.format(port=server), hosts=[f"127.0.0.1:{server}"])
    assert status == 0 and lines == [f"path /a?b=1 host 127.0.0.1:{server}"]
    (ask,) = jail.asked
    assert ask.allowed and ask.port == server and ask.received > 50


def test_a_listed_host_is_reached_through_a_tunnel(inside, server):
    _, lines, _ = inside(CONNECT.format(host=f"127.0.0.1:{server}"), hosts=[f"127.0.0.1:{server}"])
    assert lines == ["HTTP/1.1 200 Connection established", "path /tunnel host inside"]


@pytest.mark.parametrize("source", [GET.format(port="{port}"), CONNECT.format(host="127.0.0.1:{port}")])
def test_another_host_is_refused_and_noted(inside, server, source):
    _, lines, jail = inside(source.replace("{port}", str(server)), hosts=["example.com"])
    assert "403" in lines[0]
    assert [(ask.port, ask.allowed) for ask in jail.asked] == [(server, False)]


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('127.0.0.1', {port}), timeout=3)",
        "socket.create_connection(('1.1.1.1', 53), timeout=3)",
        "socket.getaddrinfo('example.com', 443)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_UNIX).connect('/run/docker.sock')",
        "socket.socket(socket.AF_UNIX).connect(chr(0) + 'abstract')",
    ],
)
@pytest.mark.parametrize("hosts", [(), ("example.com",)], ids=["no-network", "proxy"])
def test_there_is_no_other_way_out(inside, server, attempt, hosts):
    source = (
        f"import socket\ntry:\n    {attempt.format(port=server)}\n    print('out')\nexcept OSError: print('refused')"
    )
    _, lines, _ = inside(source, hosts=hosts)
    assert lines == ["refused"]


def test_nonsense_is_answered_with_nothing(inside):
    source = """
import socket
for line in (b"\\0" * 100, b"GET /relative HTTP/1.1", b"CONNECT", b"GET http:// HTTP/1.1"):
    said = line + b"\\r\\n\\r\\n"
    s = socket.create_connection(("127.0.0.1", 3128), timeout=10)
    s.sendall(said); s.shutdown(socket.SHUT_WR)
    print(b"200" in s.recv(4096))
"""
    _, lines, jail = inside(source, hosts=["example.com"])
    assert lines == ["False"] * 4 and not any(ask.allowed for ask in jail.asked)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("api.example.com", ("api.example.com", 443)),
        ("API.example.com:8443", ("api.example.com", 8443)),
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
        ("http://plain", ("plain", 80)),
    ],
)
def test_a_host_is_a_name_and_a_port(text, parsed):
    assert parse_host(text) == parsed


@pytest.mark.parametrize("text", ["", "ftp://x", "http://"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ValueError, match="expected a host"):
        parse_host(text)
