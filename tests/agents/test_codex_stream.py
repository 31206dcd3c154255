"""What Codex prints and what its session's file holds, as events; and the tools of a request."""

from __future__ import annotations

import json
import os

import pytest

from atrex.agents.chat import price
from atrex.agents.codex import CodexReader
from atrex.agents.codex_session import Sessions, tools_of
from atrex.agents.events import Ended, Message, Model, Output, ToolCall, ToolResult, Usage

STARTED = {"type": "thread.started", "thread_id": "me"}


@pytest.fixture
def session(tmp_path):
    """Appends records to a session's file."""
    path = tmp_path / "sessions" / "2026" / "11" / "30" / "rollout-me.jsonl"
    path.parent.mkdir(parents=True)

    def add(kind: str, payload: dict, to: str = "rollout-me.jsonl") -> None:
        with (path.parent / to).open("a") as file:
            file.write(json.dumps({"type": kind, "payload": payload}) + "\n")

    return add


@pytest.fixture
def reader(tmp_path):
    return CodexReader(Sessions(tmp_path))


def _tokens(fresh: int, output: int, cached: int = 0, reasoning: int = 0) -> dict:
    return {
        "input_tokens": fresh + cached,
        "cached_input_tokens": cached,
        "output_tokens": output,
        "reasoning_output_tokens": reasoning,
    }


def _reply(name: str, usage: dict, thread: str = "me") -> dict:
    return {"response_id": name, "thread_id": thread, "usage": usage}


def _item(kind: str, over: bool = True, **more) -> dict:
    return {"type": "item.completed" if over else "item.started", "item": {"id": "item_1", "type": kind} | more}


def _of(events: list, kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("late", [False, True], ids=["in-time", "late"])
def test_usage_is_told_with_the_reply_and_not_again_at_the_end(reader, session, late):
    first = [] if late else list(reader.read(STARTED))
    session("token_usage_record", _reply("r1", _tokens(100, 20, cached=50, reasoning=5)))
    first += list(reader.read(STARTED if late else {"type": "turn.started"}))
    list(reader.read({"type": "turn.completed", "usage": _tokens(100, 20, cached=50, reasoning=5)}))
    assert _of(first, Usage) == [Usage(input=150, output=20, cached=50, reasoning=5)]
    assert list(reader.finish()) == [Ended(how="done")]


def test_without_a_sessions_file_the_end_tells_all(reader):
    list(reader.read(STARTED))
    list(reader.read({"type": "turn.completed", "usage": _tokens(100, 20)}))
    assert list(reader.finish()) == [Usage(input=100, output=20), Ended(how="done")]


def test_a_reply_that_stands_in_two_files_is_told_once(reader, session):
    list(reader.read(STARTED))
    session("token_usage_record", _reply("r1", _tokens(100, 20)))
    session("token_usage_record", _reply("r1", _tokens(100, 20)), to="rollout-fork.jsonl")
    session("token_usage_record", _reply("r2", _tokens(7, 3), thread="other"), to="rollout-fork.jsonl")
    list(reader.read({"type": "turn.completed", "usage": _tokens(100, 20)}))
    assert _of(list(reader.finish()), Usage) == []


def test_sub_agents_count_beside_the_total_of_the_agent(reader, session):
    list(reader.read(STARTED))
    session("token_usage_record", _reply("r2", _tokens(7, 3), thread="other"), to="rollout-other.jsonl")
    events = list(reader.read({"type": "turn.completed", "usage": _tokens(100, 20)})) + list(reader.finish())
    assert _of(events, Usage) == [Usage(input=7, output=3), Usage(input=100, output=20)]


def test_a_reply_is_priced_by_its_model(tmp_path, session):
    reader = CodexReader(Sessions(tmp_path), lambda model, usage: usage.tokens if model == "gpt-x" else None)
    session("turn_context", {"model": "gpt-x"})
    session("token_usage_record", _reply("r1", _tokens(100, 20)))
    assert [usage.cost_usd for usage in _of(list(reader.read(STARTED)), Usage)] == [120]


@pytest.mark.slow
def test_prices_are_those_of_the_table():
    cost = price("gpt-5.2", Usage(input=300, cached=200, output=10))
    listed = pytest.importorskip("litellm").model_cost["gpt-5.2"]
    expected = 100 * listed["input_cost_per_token"] + 200 * listed["cache_read_input_token_cost"]
    assert cost == pytest.approx(expected + 10 * listed["output_cost_per_token"])
    assert price("no-such-model", Usage(input=300)) is None


def test_half_a_line_waits_for_its_other_half(tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    line = json.dumps({"type": "turn_context", "payload": {"model": "m"}})
    (folder / "rollout-a.jsonl").write_text(line[:20])
    sessions = Sessions(tmp_path)
    assert list(sessions.read()) == []
    (folder / "rollout-a.jsonl").write_text(line + "\n")
    assert list(sessions.read()) == [("turn_context", {"model": "m"})] and list(sessions.read()) == []


@pytest.mark.parametrize(
    "text", ["nonsense\n", "[]\n", '{"type": "event_msg"}\n', '{"type": "event_msg", "payload": 1}\n']
)
def test_what_is_no_record_is_passed_over(tmp_path, text):
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "rollout-a.jsonl").write_text(text)
    assert list(Sessions(tmp_path).read()) == []


def test_links_and_pipes_are_not_read(tmp_path):
    folder = tmp_path / "home" / "sessions"
    folder.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "rollout-x.jsonl").write_text(json.dumps({"type": "turn_context", "payload": {"model": "m"}}) + "\n")
    (folder / "rollout-link.jsonl").symlink_to(outside / "rollout-x.jsonl")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "rollout-pipe.jsonl")
    assert list(Sessions(tmp_path / "home").read()) == []


def test_the_model_is_the_sessions(reader, session):
    session("turn_context", {"model": "gpt-x"})
    assert Model(name="gpt-x") in list(reader.read(STARTED))


def test_a_command_is_a_call_and_its_answer(reader):
    command = {"command": "ls", "aggregated_output": "", "exit_code": None, "status": "in_progress"}
    events = list(reader.read(_item("command_execution", over=False, **command)))
    done = command | {"aggregated_output": "no", "exit_code": 2, "status": "failed"}
    events += list(reader.read(_item("command_execution", **done)))
    assert events == [
        ToolCall(id="item_1", tool="command_execution", arguments={"command": "ls"}),
        ToolResult(id="item_1", text="no\n[exit status 2]", failed=True),
    ]


def test_an_item_that_only_ends_is_a_call_too(reader):
    changes = [{"path": "candidate.py", "kind": "add"}]
    events = list(reader.read(_item("file_change", changes=changes, status="completed")))
    assert events == [
        ToolCall(id="item_1", tool="file_change", arguments={"changes": changes}),
        ToolResult(id="item_1", text="completed"),
    ]


def test_words_reasoning_and_warnings_are_told_apart(reader):
    events = [
        event
        for line in (_item("agent_message", text="a"), _item("reasoning", text="b"), _item("error", message="c"))
        for event in reader.read(line)
    ]
    assert events == [
        Message(role="agent", text="a"),
        Message(role="reasoning", text="b"),
        Output(stream="err", text="c"),
    ]


@pytest.mark.parametrize("record_first", [False, True], ids=["printed-first", "recorded-first"])
def test_every_reply_is_one_turn(reader, session, record_first):
    """With words or of tools alone, whichever of the two sources is read first."""
    events = list(reader.read(STARTED))
    session("response_item", {"type": "function_call"})
    session("token_usage_record", _reply("r1", _tokens(1, 1)))
    session("response_item", {"type": "message", "role": "assistant"})
    if record_first:
        session("token_usage_record", _reply("r2", _tokens(1, 1)))
    events += list(reader.read(_item("agent_message", text="a")))
    if not record_first:
        session("token_usage_record", _reply("r2", _tokens(1, 1)))
    events += list(reader.read({"type": "turn.completed", "usage": _tokens(2, 2)}))
    assert [event.text for event in _of(events, Message)] == ["", "a"]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        ({"response_too_many_failed_attempts": {"http_status_code": 429}}, "provider"),
        ({"http_connection_failed": {"http_status_code": 503}}, "provider"),
        ({"http_connection_failed": {"http_status_code": None}}, "provider"),
        ({"response_too_many_failed_attempts": {"http_status_code": 413}}, "error"),
        ("server_overloaded", "provider"),
        ("usage_limit_exceeded", "provider"),
        ("unauthorized", "provider"),
        ("context_window_exceeded", "error"),
        ("model_not_found", "error"),
        ("other", "error"),
        (None, "error"),
    ],
)
def test_an_end_of_the_service_is_told_from_its_own(reader, session, error, how):
    session("event_msg", {"type": "task_complete", "error": {"message": "no", "codex_error_info": error}})
    list(reader.read({"type": "turn.failed", "error": {"message": "no"}}))
    assert list(reader.finish()) == [Ended(how=how, reason="no")]


@pytest.mark.parametrize(
    ("error", "resumable"),
    [
        ({"response_too_many_failed_attempts": {"http_status_code": 429}}, "me"),
        ({"http_connection_failed": {"http_status_code": None}}, "me"),
        ("server_overloaded", "me"),
        ({"http_connection_failed": {"http_status_code": 401}}, None),
        ("usage_limit_exceeded", None),
        ("model_not_found", None),
    ],
)
def test_a_session_is_taken_up_again_after_what_passes(reader, session, error, resumable):
    list(reader.read(STARTED))
    session("event_msg", {"type": "task_complete", "error": {"message": "no", "codex_error_info": error}})
    list(reader.read({"type": "turn.failed", "error": {"message": "no"}}))
    assert reader.resumable == resumable


def test_items_of_a_session_that_goes_on_are_other_items(reader):
    first = list(reader.read(_item("file_change", status="completed")))
    reader.again()
    second = list(reader.read(_item("file_change", status="completed")))
    assert [event.id for event in _of(first + second, ToolCall)] == ["item_1", "item_1/2"]


def test_tools_of_a_request_are_found_wherever_they_stand():
    script = (
        "Run it.\n```ts\ndeclare const tools: { exec_command(args: {\n  cmd: string;\n}): Promise<unknown>; };\n```"
    )
    request = {
        "tools": [{"type": "web_search"}, {"type": "function", "name": "shell", "description": "Runs."}],
        "input": [
            {"type": "message", "role": "user", "content": []},
            {
                "type": "additional_tools",
                "tools": [
                    {
                        "type": "namespace",
                        "name": "functions",
                        "tools": [{"type": "custom", "name": "exec", "description": script}],
                    }
                ],
            },
        ],
    }
    assert tools_of(request) == ("exec", "exec_command", "shell", "web_search")
