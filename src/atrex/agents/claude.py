"""`claude`: Anthropic's Claude Code, without a person, in a jail.

Flags and variables are those of Claude Code 2.1 (code.claude.com/docs/en/cli-reference and /env-vars); the stream is
`--output-format stream-json`, with partial messages, since whole ones do not yet know how much came out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from atrex.agents import cli_stream
from atrex.agents.base import Choice, Need, Policy, Task, register
from atrex.agents.events import Cost, Ended, Event, Message, Model, Output, ToolCall, ToolResult, Tools, Usage
from atrex.agents.jail import PLACEHOLDER, Jail, Service, Terms

_KEY = "ANTHROPIC_API_KEY"
_API = "https://api.anthropic.com"
_DEFAULT = ("Bash", "Edit", "Glob", "Grep", "Read", "Write")
_TOOLS: dict[Policy, tuple[str, ...]] = {
    "default": _DEFAULT,
    "extended": (*_DEFAULT, "NotebookEdit", "Task", "WebFetch", "WebSearch"),
}
# Nothing but the task and the model: no files of a user or a project, nothing remembered, nothing sent elsewhere.
_FLAGS = (
    "--print", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
    "--permission-mode", "bypassPermissions", "--setting-sources", "", "--strict-mcp-config",
    "--disable-slash-commands", "--no-session-persistence",
)  # fmt: skip
# What it asks of the service: replies, and counts of tokens where it has to know how long a conversation is.
_REQUESTS = ("POST /v1/messages", "POST /v1/messages/count_tokens")
_SWITCHES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # what looks after them is not among the tools
    "IS_SANDBOX": "1",  # the jail is one; uid 0 may not leave out its questions elsewhere
    # bash takes a socket on its standard input for a login from afar, and would read a file that is shut here at every
    # command; it does so at the first level of shells only.
    "SHLVL": "1",
}


@register("claude")
class Claude:
    """Runs `claude` with its own tools. Dollars are counted by it, from its own list of prices."""

    keeps_usd = True

    def __init__(self, choice: Choice):
        self._model, self._base_url = choice.alone().model, cli_stream.address(choice.base_url, _API)
        self._program = cli_stream.find("claude")
        self._key = os.environ.get(_KEY, "")

    @classmethod
    def needs(cls) -> list[Need]:
        return cli_stream.needs("claude", "@anthropic-ai/claude-code", _KEY, "https://console.anthropic.com")

    def terms(self, task: Task) -> Terms:
        service = Service(self._base_url, self._key, _REQUESTS, None if task.policy == "extended" else _beyond)
        return Terms(readable=self._program.readable, service=service, device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return (self._key,)

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        yield Message(role="supervisor", text=task.prompt)
        argv = [*self._program.argv, *_FLAGS, "--tools", ",".join(_TOOLS[task.policy])]
        if self._model:
            argv += ["--model", self._model]
        if task.budget_usd is not None:
            argv += ["--max-budget-usd", f"{task.budget_usd:.6f}"]
        env = _SWITCHES | {_KEY: PLACEHOLDER, "CLAUDE_CONFIG_DIR": str(jail.home / "claude")}
        env["ANTHROPIC_BASE_URL"] = jail.terms.service.inside
        yield from cli_stream.follow(jail, argv, env, task.prompt, task.deadline, ClaudeReader(task.policy))


def _beyond(request: dict[str, Any]) -> str | None:
    """Why a request goes beyond the policy `default`, whoever in the jail makes it: tools that the service runs."""
    tools = request.get("tools")
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    kinds += [name for name in ("mcp_servers", "container") if request.get(name)]
    others = sorted({str(kind) for kind in kinds if kind not in (None, "custom")})
    return f"tools of the service are off under --policy default: {', '.join(others)}" if others else None


@dataclass
class _Reply:
    usage: dict[str, Any]
    said: bool = False


class ClaudeReader:
    """Reads `stream-json`. Usage is told with every reply; the result's totals add what was told of no reply."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self._open: dict[str | None, _Reply] = {}  # by the tool call that a sub-agent works for; None is the agent
        self._told = Usage()
        self.waiting = False
        self._ended: Ended | None = None

    def read(self, line: dict[str, Any]) -> Iterator[Event]:
        kind = line.get("type")
        if kind == "system":
            yield from self._system(line)
        elif kind == "stream_event":
            yield from self._partial(line["event"], line.get("parent_tool_use_id"))
        elif kind == "assistant":
            yield from self._assistant(line)
        elif kind == "user":
            yield from _results(line["message"].get("content"))
        elif kind == "result":
            yield from self._result(line)

    def finish(self) -> Iterator[Event]:
        for of in list(self._open):  # it was stopped in the middle of a reply
            yield from self._close(of)
        if self._ended is not None:
            yield self._ended

    def _system(self, line: dict[str, Any]) -> Iterator[Event]:
        if line.get("subtype") == "init":
            yield Output(stream="out", text=f"Claude Code {line.get('claude_code_version')}")
            yield Tools(names=tuple(sorted(line["tools"])))
            if extra := cli_stream.beyond(self._policy, line["tools"]):
                reason = f"claude has tools beyond --policy {self._policy}: {', '.join(extra)}"
                yield Ended(how="error", reason=reason)
        elif line.get("subtype") == "api_retry":
            self.waiting = True
            about = f"{line.get('error')} ({line.get('error_status')})"
            yield Output(stream="out", text=f"retry {line.get('attempt')} of {line.get('max_retries')}: {about}")

    def _partial(self, event: dict[str, Any], of: str | None) -> Iterator[Event]:
        kind = event["type"]
        if kind == "message_start":
            yield from self._close(of)  # one that was cut off
            self.waiting = False
            message = event["message"]
            self._open[of] = _Reply(dict(message.get("usage") or {}))
            yield Model(name=message["model"])
        elif kind == "message_delta" and of in self._open:
            given = event.get("usage") or {}
            self._open[of].usage |= {name: value for name, value in given.items() if value is not None}
        elif kind == "message_stop":
            yield from self._close(of)

    def _close(self, of: str | None) -> Iterator[Event]:
        reply = self._open.pop(of, None)
        if reply is None:
            return
        if not reply.said:
            yield Message(role="agent", text="")  # a reply of tool calls alone is a turn too
        usage = _usage(reply.usage)
        self._told = self._told + usage
        yield usage

    def _assistant(self, line: dict[str, Any]) -> Iterator[Event]:
        message, of = line["message"], line.get("parent_tool_use_id")
        synthetic = message.get("model") == "<synthetic>"  # the program's own words, about an error
        for block in message.get("content") or ():
            kind = block["type"]
            if kind == "text" and synthetic:
                yield Output(stream="err", text=block["text"])
            elif kind == "text":
                if of in self._open:
                    self._open[of].said = True
                yield Message(role="agent", text=block["text"])
            elif kind == "thinking":
                yield Message(role="reasoning", text=block["thinking"])
            elif kind in ("tool_use", "server_tool_use"):
                yield ToolCall(id=block["id"], tool=block["name"], arguments=block.get("input") or {})

    def _result(self, line: dict[str, Any]) -> Iterator[Event]:
        for of in list(self._open):
            yield from self._close(of)
        models = (line.get("modelUsage") or {}).values()
        total = {
            "input": sum(m["inputTokens"] + m["cacheReadInputTokens"] + m["cacheCreationInputTokens"] for m in models),
            "output": sum(m["outputTokens"] for m in models),
            "cached": sum(m["cacheReadInputTokens"] for m in models),
        }
        rest = Usage(**{name: max(0, count - getattr(self._told, name)) for name, count in total.items()})
        if rest.tokens:
            yield rest
        if line.get("total_cost_usd") is not None:
            yield Cost(usd=line["total_cost_usd"])
        self._ended = _end(line, self.waiting)


def _usage(given: dict[str, Any]) -> Usage:
    cached = given.get("cache_read_input_tokens") or 0
    written = given.get("cache_creation_input_tokens") or 0
    return Usage(
        input=(given.get("input_tokens") or 0) + cached + written,
        output=given.get("output_tokens") or 0,
        cached=cached,
    )


def _results(content: Any) -> Iterator[Event]:
    for block in content if isinstance(content, list) else ():
        if block.get("type") == "tool_result":
            given = block.get("content") or ""
            parts = [{"text": given}] if isinstance(given, str) else given
            text = "\n".join(part.get("text", f"[{part.get('type')}]") for part in parts)
            yield ToolResult(id=block["tool_use_id"], text=text, failed=bool(block.get("is_error")))


def _end(result: dict[str, Any], waiting: bool) -> Ended:
    if not result.get("is_error"):
        return Ended(how="done")
    reason = result.get("result") or "; ".join(result.get("errors") or ()) or result.get("subtype")
    if result.get("subtype") == "error_max_budget_usd":
        return Ended(how="budget", reason=reason)
    status = result.get("api_error_status")
    of_service = waiting if status is None else cli_stream.is_providers(status)
    return Ended(how="provider" if of_service else "error", reason=reason)
