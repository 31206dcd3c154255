"""The service as users run it: a process of its own, asked by HTTP."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone

pytest.importorskip("uvicorn", reason="needs atrex[serve]")

WRONG = HONEST.replace("self.eps)", "self.eps + 1)")
SMALL = "5,15-18,28,32,33,41,46-48"
SLEEPS = HONEST.replace("h = x.float()", "import time; time.sleep(8); h = x.float()")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve_judge.py"


class Server:
    def __init__(self, *options):
        command = [sys.executable, "-m", "atrex.cli.main", "serve-judge", "--device", "cpu", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = next(line for line in self.process.stderr if "POST /judge" in line)
        self.address = re.search(r"http://\S+:\d+", line)[0]
        self.tree = psutil.Process(self.process.pid)

    def ask(self, source, shapes="46", timeout=200):
        """(status, answer) for a quick judging."""
        body = json.dumps({"candidate": source, "problem": "rms_norm", "shapes": shapes, "seeds": 1, "held_out": False})
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/judge", body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def health(self):
        with urllib.request.urlopen(f"{self.address}/health", timeout=10) as answer:
            return json.load(answer)

    def zygote(self):
        judge = next(p for p in self.tree.children() if "spawn_main" in " ".join(p.cmdline()))
        return next(p for p in judge.children() if "atrex.evaluate.zygote" in p.cmdline())

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.process.stderr.close()
        return status


@pytest.fixture(scope="module")
def server():
    made = Server("--max-seconds", "25")
    yield made
    if made.process.poll() is None:
        made.end()


@pytest.mark.slow
def test_an_honest_candidate_passes_and_its_seeds_are_those_committed_to(server):
    status, answer = server.ask(HONEST)
    assert status == 200 and [u["verdict"]["status"] for u in answer["units"]] == ["passed"]
    assert hashlib.sha256(bytes.fromhex(answer["seeds"])).hexdigest() == answer["seeds_commitment"]
    assert server.ask(HONEST)[1]["seeds"] != answer["seeds"]


@pytest.mark.slow
@pytest.mark.parametrize("source", [WRONG, "def broken(:"])
def test_a_candidate_that_is_wrong_is_an_answer_and_no_refusal(server, source):
    status, answer = server.ask(source)
    assert status == 200 and [u["verdict"]["status"] for u in answer["units"]] == ["failed"]


@pytest.mark.slow
def test_the_service_outlives_its_zygote(server):
    restarts = server.health()["judges_restarted"]
    server.zygote().kill()
    status, answer = server.ask(HONEST)
    assert status == 200 and answer["units"][0]["verdict"]["status"] == "passed"
    assert server.health()["judges_restarted"] == restarts + 1


@pytest.mark.slow
def test_a_request_over_its_time_is_503_with_what_was_judged_and_the_next_one_is_answered(server):
    scratch = Path(server.zygote().cwd())
    status, answer = server.ask(SLEEPS, shapes="46-49")
    assert status == 503 and "within 25 s" in answer["error"] and isinstance(answer["units"], list)
    assert server.ask(HONEST)[1]["units"][0]["verdict"]["status"] == "passed"
    assert not scratch.exists()


@pytest.mark.slow
def test_clients_that_leave_do_not_hold_up_the_queue(server):
    before = server.health()["units_judged"]
    body = json.dumps({"candidate": HONEST, "problem": "rms_norm", "shapes": SMALL, "held_out": False}).encode()
    host, port = server.address.removeprefix("http://").split(":")
    head = f"POST /judge HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head = f"{head}Content-Length: {len(body)}\r\n\r\n".encode()
    for sent in (head + body, head + body, head + body[:50]):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
            time.sleep(0.5)
    status, answer = server.ask(HONEST)
    assert status == 200 and answer["units"][0]["verdict"]["status"] == "passed"
    state = server.health()
    assert (state["waiting"], state["judging"]) == (0, 0)
    assert state["units_judged"] - before <= 3  # of 24: the one in hand, perhaps one of the second, and ours


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_service_its_judges_and_their_folders(number):
    server = Server()
    scratch = Path(server.zygote().cwd())
    children = server.tree.children(recursive=True)
    assert server.end(number) == 0
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive and not scratch.exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_requests_leave_memory_descriptors_and_folders_flat(tmp_path):
    out = tmp_path / "record.json"
    subprocess.run([sys.executable, str(BENCHMARK), "--requests", "30", "--out", str(out)], check=True)
    record = json.loads(out.read_text())
    start, end = record["counts"]["start"], record["counts"]["end"]
    assert record["verdicts"] == {"passed": 30} and record["judges_restarted"] == 0
    assert end["descriptors"] == start["descriptors"]
    assert end["processes"].keys() == start["processes"].keys()
    assert end["scratch_entries"] == start["scratch_entries"]
    assert end["rss_mib"] - start["rss_mib"] < 10, record["counts"]


def refusal(*options, **environment):
    from atrex.cli.main import app

    result = CliRunner().invoke(app, ["serve-judge", "--device", "cpu", *options], env=environment)
    return str(result.exception)


def test_a_host_that_others_reach_needs_a_token():
    assert "give a token" in refusal("--host", "0.0.0.0")


def test_a_token_that_can_be_guessed_is_refused():
    assert "at least 16" in refusal("--host", "0.0.0.0", ATREX_TOKEN="short")


def test_a_token_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    os.chmod(path, 0o644)
    assert "chmod 600" in refusal("--token-file", str(path))
