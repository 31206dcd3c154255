"""A model behind a service that speaks the chat-completions protocol, from its first word to a record."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

import atrex
from atrex.agents import api
from atrex.agents.base import Choice, make
from atrex.errors import UserError
from atrex.generate.accounting import Budget
from atrex.generate.solve import Solver, Stopped, Work
from atrex.generate.target import target
from atrex.generate.transcript import read
from atrex.problems.load import load_suite
from tests.agents.chat_server import Break, ChatServer, Fail, Hang, Raw, Say, error

pytestmark = [
    pytest.mark.slow,  # LiteLLM alone takes seconds to load
    pytest.mark.skipif(find_spec("litellm") is None, reason="needs litellm"),
]
KEY = "sk-placeholder-0123456789"
CANDIDATE = "class Model: pass\n"
WRITE = ("write", {"path": "candidate.py", "content": CANDIDATE})
DONE = Say("Done.")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(api, "BACK_OFF", (0.0, 0.0, 0.0))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


class Run:
    """What one problem came to."""

    def __init__(self, out: Path, record, server: ChatServer):
        self.out, self.record, self.server = out, record, server
        self.events = [event for _, event in read(out / "transcripts" / "rms_norm-0.jsonl")]

    def of(self, kind: str) -> list:
        return [event for event in self.events if event.kind == kind]

    @property
    def results(self) -> list[str]:
        return [event.text for event in self.of("tool_result")]


@pytest.fixture(scope="module")
def suite():
    return load_suite()


@pytest.fixture
def solver(tmp_path):
    def make_one(server: ChatServer, budget: Budget | None = None, policy="default") -> Solver:
        choice = Choice.parse("api:some-model", base_url=server.url)
        aim = target("cpp", None, None)
        work = Work(tmp_path, make(choice), choice, "cpp", aim, policy, budget or Budget(seconds=240.0))
        return Solver(work, back_off=())

    return make_one


@pytest.fixture
def solve(solver, suite, tmp_path):
    def run(replies, *how, **more) -> Run:
        with ChatServer(replies) as server:
            record = solver(server, *how, **more).solve(suite.problem("rms_norm"), 0)
            return Run(tmp_path, record, server)

    return run


def test_a_model_writes_a_candidate_and_says_that_it_is_done(solve):
    run = solve([Say("I look.", [("shell", {"command": "ls"})]), Say("", [WRITE]), DONE])
    assert run.record.ended == "done" and (run.out / "sample-0" / "rms_norm.py").read_text() == CANDIDATE
    assert "reference.py" in run.results[0] and run.record.tool_calls == 2 and run.record.turns == 3
    assert run.record.tools == ["read", "write", "edit", "shell"] and run.record.models == ["some-model"]
    assert run.record.confinement["unconfined"] == []


def test_it_is_told_the_task_and_gets_every_result_back(solve):
    run = solve([Say("", [("shell", {"command": "echo seen"}), ("read", {"path": "none"})]), Say("", [WRITE]), DONE])
    first, second = run.server.requests[:2]
    assert "rms_norm" in first["messages"][1]["content"] and len(first["tools"]) == 4
    calls = second["messages"][2]["tool_calls"]
    assert [m["content"] for m in second["messages"][3:]] == [
        "seen\n[exit status 0]",
        "none: No such file or directory",
    ]
    assert [m["tool_call_id"] for m in second["messages"][3:]] == [call["id"] for call in calls]


def test_usage_is_summed_and_a_price_that_is_not_known_is_none(solve):
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    more = {"prompt_tokens_details": {"cached_tokens": 60}, "completion_tokens_details": {"reasoning_tokens": 5}}
    run = solve([Say("", [WRITE], usage=usage), Say("Done.", usage=usage | more)])
    used = run.record.usage
    assert (used.input, used.output, used.cached, used.reasoning) == (200, 40, 60, 5)
    assert run.record.cost_usd is None


def test_usage_that_is_not_told_is_not_made_up(solve):
    assert solve([Say("", [WRITE], usage=None), Say("Done.", usage=None)]).record.usage is None


def test_what_it_thinks_is_kept_apart_from_what_it_says(solve):
    run = solve([Say("I write.", [WRITE], reasoning="Let me think."), DONE])
    assert [m.text.strip() for m in run.of("message") if m.role == "reasoning"] == ["Let me think."]
    assert run.record.turns == 2 and run.record.usage.reasoning == 0


@pytest.mark.parametrize(
    "trouble",
    [
        Fail(429, error("slow down"), {"Retry-After": "0"}),
        Fail(500, error("oops")),
        Fail(503),
        Break("half a"),
        Break("half a", error("oops", kind="server_error")),
        Raw(b"<html>busy</html>"),
    ],
    ids=["429", "500", "503", "cut off", "error in stream", "no protocol"],
)
def test_a_service_that_fails_now_and_then_is_asked_again(solve, trouble):
    run = solve([Say("", [WRITE]), trouble, trouble, DONE])
    assert run.record.ended == "done" and run.record.attempts == 1 and len(run.server.requests) == 4
    assert run.server.requests[1] == run.server.requests[3]
    assert sum("asked again" in line.text for line in run.of("output")) == 2


def test_a_service_is_left_alone_for_as_long_as_it_asks(solve):
    run = solve([Fail(429, error("slow down"), {"Retry-After": "0.3"}), Say("", [WRITE]), DONE])
    assert [line.text for line in run.of("output")] == ["status 429: slow down; asked again in 0.3 s"]


def test_a_service_that_keeps_failing_is_given_up_and_what_exists_is_kept(solve):
    run = solve([Say("", [WRITE]), Fail(429, error("slow down"))])
    assert run.record.ended == "provider" and run.record.reason == "status 429: slow down"
    assert len(run.server.requests) == 1 + 4 and run.record.candidate_sha256


@pytest.mark.parametrize(
    ("trouble", "ended", "said"),
    [
        (Fail(401, error(f"Incorrect API key provided: {KEY[:8]}***")), "provider", "the key was refused (status 401)"),
        (Fail(402, error("pay")), "provider", "not paid for"),
        (Fail(403, error("no")), "provider", "access was refused"),
        (Fail(404, error("no model of that name", "model_not_found")), "provider", "no model of that name"),
        (
            Fail(400, error("This model's maximum context length is 10 tokens.", "context_length_exceeded")),
            "error",
            "longer than the model takes",
        ),
        (Fail(400, error("tools are not \ud800 supported")), "error", "tools are not ? supported"),
        (Say("no", finish="content_filter"), "error", "content filter"),
    ],
    ids=["key", "money", "access", "model", "context", "request", "filter"],
)
def test_what_asking_again_cannot_mend_ends_it_at_once(solve, trouble, ended, said):
    run = solve([trouble])
    assert run.record.ended == ended and said in run.record.reason and len(run.server.requests) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"path": "candidate.py", "conte', "the arguments are no JSON: "),
        ('["candidate.py"]', "the arguments are no JSON object"),
        ("[" * 3_000, "the arguments are no JSON: "),
        ('{"path": "\\ud800", "content": 3}', "content: expected text"),
        ("", "path: is missing"),
    ],
    ids=["cut", "list", "deep", "half a pair", "none"],
)
def test_arguments_that_make_no_sense_are_answered(solve, arguments, said):
    run = solve([Say("", [("write", arguments)]), Say("", [WRITE]), DONE])
    assert run.record.ended == "done" and run.results[0].startswith(said)
    sent = run.server.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)


def test_a_tool_that_is_not_there_is_answered(solve):
    run = solve([Say("", [("web_search", {"query": "kernels"})]), Say("", [WRITE]), DONE])
    assert run.record.ended == "done" and "there is no tool 'web_search'" in run.results[0]


def test_a_reply_that_was_cut_off_goes_on(solve):
    run = solve(
        [Say("I was about to", finish="length"), Say("", [("write", '{"pa')], finish="length"), Say("", [WRITE]), DONE]
    )
    assert run.record.ended == "done" and run.record.candidate_sha256
    assert run.server.requests[1]["messages"][-1]["content"] == api.GO_ON
    assert "call again with less" in run.results[0]


def test_replies_that_are_always_cut_off_end_it(solve):
    run = solve([Say("and so on", finish="length")])
    assert run.record.ended == "error" and "cut off" in run.record.reason


def test_a_model_that_stops_before_its_file_is_there_is_reminded_twice(solve):
    run = solve([Say("I am done.")])
    assert run.record.ended == "done" and run.record.candidate_sha256 is None and len(run.server.requests) == 3
    assert (
        run.server.requests[2]["messages"][-1]["content"]
        == "candidate.py is not there yet. Go on, or say once more that you are done."
    )


def test_a_budget_of_tokens_ends_it_in_flight_and_keeps_the_file(solve):
    run = solve([Say("", [WRITE]), Say("", [("shell", {"command": "true"})])], Budget(tokens=400))
    assert run.record.ended == "budget" and run.record.usage.tokens == 480 and run.record.candidate_sha256
    assert len(run.server.requests) == 4


def test_a_budget_of_dollars_ends_at_the_first_reply_without_a_price(solve):
    run = solve([Say("", [WRITE])], Budget(usd=1.0))
    assert run.record.ended == "budget" and "price is not known" in run.record.reason
    assert len(run.server.requests) == 1


@pytest.mark.parametrize("last", [Hang(), Say("", [("shell", {"command": "sleep 1000"})])], ids=["service", "command"])
def test_what_hangs_ends_at_the_time_and_keeps_the_file(solve, last):
    run = solve([Say("", [WRITE]), last], Budget(seconds=2.0))
    assert run.record.ended == "timeout" and run.record.candidate_sha256 and run.record.seconds < 6


FORBIDDEN = {
    "metadata": Path(atrex.__file__).parent / "suite" / "rms_norm" / "metadata.json",
    "environment": f"/proc/{os.getpid()}/environ",
    "upwards": "../../../generate.json",
}


def test_no_tool_reads_what_is_not_its_own(solve, tmp_path):
    (tmp_path / "generate.json").write_text('{"call_count": "OPENAI_API_KEY"}')
    calls = [("read", {"path": str(path)}) for path in FORBIDDEN.values()]
    calls += [("shell", {"command": f"cat {path}"}) for path in FORBIDDEN.values()]
    run = solve([Say("", [*calls, ("shell", {"command": "env"})]), Say("", [WRITE]), DONE])
    failed = [event.failed for event in run.of("tool_result")]
    assert failed[:6] == [True] * 6 and "OPENAI_API_KEY" not in "".join(run.results)


def test_the_key_goes_to_the_service_and_into_no_file(solve):
    run = solve([Say(f"Your key is {KEY}.", [("write", {"path": "candidate.py", "content": f"K = {KEY!r}"})]), DONE])
    assert run.server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert [path for path in run.out.rglob("*") if path.is_file() and KEY in path.read_text()] == []
    assert run.record.candidate_sha256 is None and KEY not in run.record.model_dump_json()


def test_a_service_of_ones_own_may_want_no_key(solve, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    assert solve([Say("", [WRITE]), DONE]).record.ended == "done"


def test_extended_tools_are_the_same_four(solve):
    assert solve([Say("", [WRITE]), DONE], policy="extended").record.tools == ["read", "write", "edit", "shell"]


def test_an_interrupt_does_not_wait_for_the_service(solver, suite):
    with ChatServer([Hang()]) as server, ThreadPoolExecutor(1) as pool:
        solving = solver(server)
        problem = pool.submit(solving.solve, suite.problem("rms_norm"), 0)
        while not server.requests:
            time.sleep(0.02)
        solving.stop()
        with pytest.raises(Stopped):
            problem.result(timeout=10)


@pytest.mark.parametrize(
    ("agent", "model", "said"),
    [
        ("api:", None, "no model"),
        ("api:a", "b", "two models"),
        ("api:some-model", None, "no provider is known"),
        ("api:anthropic/claude-sonnet-4-5", None, "set ANTHROPIC_API_KEY in the environment"),
    ],
)
def test_a_model_that_cannot_be_asked_is_one_line(agent, model, said, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(UserError, match=said):
        make(Choice.parse(agent, model))


def test_an_address_that_is_none_is_one_line():
    with pytest.raises(UserError, match="--base-url localhost:8000: expected an address"):
        make(Choice.parse("api:m", base_url="localhost:8000"))


def test_a_known_model_has_a_price(monkeypatch):
    from litellm import Usage as Told

    chat = make(Choice.parse("api:openai/gpt-4o"))._chat
    told = Told(prompt_tokens=1_000_000, completion_tokens=0, total_tokens=1_000_000)
    assert chat._usage(told, [told]).cost_usd == pytest.approx(2.5)
