"""What Claude Code prints, as events: usage told once, turns counted once, ends told apart."""

from __future__ import annotations

import pytest

from atrex.agents.claude import ClaudeReader
from atrex.agents.events import Cost, Ended, Message, Model, Output, ToolCall, ToolResult, Tools, Usage
from atrex.generate.accounting import Account, Budget


def _start(fresh: int, cached: int = 0, written: int = 0, of: str | None = None) -> dict:
    usage = {"input_tokens": fresh, "cache_read_input_tokens": cached, "cache_creation_input_tokens": written}
    message = {"model": "claude-x", "usage": usage | {"output_tokens": 1}}
    return _part({"type": "message_start", "message": message}, of)


def _delta(output: int, of: str | None = None) -> dict:
    return _part({"type": "message_delta", "usage": {"output_tokens": output, "input_tokens": None}}, of)


def _part(event: dict, of: str | None = None) -> dict:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": of}


def _says(*blocks: dict, model: str = "claude-x", of: str | None = None) -> dict:
    message = {"model": model, "content": list(blocks), "usage": {"input_tokens": 999, "output_tokens": 1}}
    return {"type": "assistant", "message": message, "parent_tool_use_id": of}


def _result(**more) -> dict:
    return {"type": "result", "subtype": "success", "is_error": False, "modelUsage": {}, "total_cost_usd": 0.25} | more


def _model(fresh: int, cached: int, written: int, output: int) -> dict:
    names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
    return dict(zip(names, (fresh, cached, written, output), strict=True))


STOP = {"type": "message_stop"}
CALL = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
REPLY = [_start(10, 20, 5), _says({"type": "text", "text": "hello"}), _says(CALL), _delta(7), _part(STOP)]


def _read(*lines: dict, policy: str = "default") -> list:
    reader = ClaudeReader(policy)
    return [event for line in lines for event in reader.read(line)] + list(reader.finish())


def _of(events: list, kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_a_reply_is_its_model_its_words_its_tools_and_then_its_usage():
    assert _read(*REPLY) == [
        Model(name="claude-x"),
        Message(role="agent", text="hello"),
        ToolCall(id="t1", tool="Bash", arguments={"command": "ls"}),
        Usage(input=35, output=7, cached=20),
    ]


def test_the_total_adds_only_what_no_reply_has_told():
    small = _model(100, 0, 0, 4)  # another model, which summed something up beside the work
    result = _result(modelUsage={"claude-x": _model(10, 20, 5, 7), "claude-small": small})
    assert _of(_read(*REPLY, result), Usage) == [Usage(input=35, output=7, cached=20), Usage(input=100, output=4)]


def test_a_total_of_what_was_told_adds_nothing():
    result = _result(modelUsage={"claude-x": _model(10, 20, 5, 7)})
    assert _of(_read(*REPLY, result), Usage) == [Usage(input=35, output=7, cached=20)]


def test_a_reply_that_was_cut_off_counts_when_the_next_begins():
    events = _read(_start(50), *REPLY)
    assert [usage.input for usage in _of(events, Usage)] == [50, 35]


def test_a_reply_that_it_was_stopped_in_counts_as_far_as_it_is_known():
    assert _of(_read(_start(50, 20)), Usage) == [Usage(input=70, output=1, cached=20)]


def test_sub_agents_are_counted_beside_the_agent():
    inner = [_start(3, of="t9"), _says({"type": "text", "text": "inner"}, of="t9"), _delta(2, "t9"), _part(STOP, "t9")]
    events = _read(_start(10), *inner, _delta(5), _part(STOP))
    assert [(usage.input, usage.output) for usage in _of(events, Usage)] == [(3, 2), (10, 5)]


def test_a_reply_of_tools_alone_is_one_turn():
    account = Account(Budget())
    for event in _read(_start(1), _says(CALL), _delta(1), _part(STOP), *REPLY):
        account.add(event)
    assert (account.turns, account.tool_calls) == (2, 2)


def test_what_tools_answer_is_text():
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "plain"},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "x"}, {"type": "image"}]},
        {"type": "tool_result", "tool_use_id": "c", "content": "no such file", "is_error": True},
    ]
    assert _read({"type": "user", "message": {"content": content}}) == [
        ToolResult(id="a", text="plain"),
        ToolResult(id="b", text="x\n[image]"),
        ToolResult(id="c", text="no such file", failed=True),
    ]


def test_the_tools_are_the_ones_it_says_it_has():
    init = {"type": "system", "subtype": "init", "tools": ["Read", "Bash"], "claude_code_version": "2.1"}
    assert _of(_read(init), Tools) == [Tools(names=("Bash", "Read"))] and not _of(_read(init), Ended)


@pytest.mark.parametrize("tool", ["WebFetch", "WebSearch", "Task", "Agent", "NotebookEdit"])
def test_a_tool_beyond_the_policy_ends_it(tool):
    init = {"type": "system", "subtype": "init", "tools": ["Read", tool]}
    (ended,) = _of(_read(init), Ended)
    assert ended.how == "error" and tool in ended.reason
    assert not _of(_read(init, policy="extended"), Ended)


def test_its_own_words_about_an_error_are_no_turn():
    events = _read(_says({"type": "text", "text": "API Error: 529"}, model="<synthetic>"))
    assert events == [Output(stream="err", text="API Error: 529")]


RETRY = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error": "unknown"}


@pytest.mark.parametrize(
    ("lines", "how"),
    [
        ([_result()], "done"),
        ([_result(subtype="error_max_budget_usd", is_error=True, errors=["Reached"])], "budget"),
        ([_result(subtype="error_during_execution", is_error=True)], "error"),
        ([_result(is_error=True, api_error_status=400, result="Prompt is too long")], "error"),
        ([_result(is_error=True, api_error_status=404, result="no such model")], "error"),
        ([_result(is_error=True, api_error_status=None, result="Prompt is too long")], "error"),
        ([_result(is_error=True, api_error_status=401, result="key")], "provider"),
        ([_result(is_error=True, api_error_status=429, result="rate")], "provider"),
        ([_result(is_error=True, api_error_status=529, result="overloaded")], "provider"),
        ([RETRY, _result(is_error=True, api_error_status=None, result="Connection error.")], "provider"),
        ([RETRY, *REPLY, _result(is_error=True, api_error_status=None, result="Prompt is too long")], "error"),
    ],
)
def test_an_end_of_the_service_is_told_from_its_own(lines, how):
    (ended,) = _of(_read(*lines), Ended)
    assert ended.how == how


def test_its_cost_is_that_of_all_replies():
    account = Account(Budget(usd=1.0), agent_keeps_usd=True)
    for event in _read(*REPLY, *REPLY, _result()):
        account.add(event)
    assert account.cost_usd == 0.25 and account.over() is None


def test_without_its_result_the_cost_is_not_known():
    account = Account(Budget(usd=1.0), agent_keeps_usd=True)
    for event in _read(*REPLY):
        account.add(event)
    assert account.cost_usd is None and account.over() is None


def test_a_cost_is_told_with_the_result():
    assert _of(_read(*REPLY), Cost) == [] and _of(_read(*REPLY, _result()), Cost) == [Cost(usd=0.25)]
