"""`codex`: OpenAI's Codex, without a person, in a jail.

Flags and settings are those of Codex 0.171 (developers.openai.com/codex/config-reference). The stream of
`codex exec --json` tells usage only at the end, and an error without its kind; both are read from the session's file
as it grows (`Sessions`). Which tools it has stands in neither: `offered` looks at what it sends to a model.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from atrex.agents import chat, cli_stream
from atrex.agents.base import Choice, Need, Policy, Task, register
from atrex.agents.codex_session import Sessions, given_tools, offered
from atrex.agents.events import Ended, Event, Message, Model, Output, ToolCall, ToolResult, Tools, Usage
from atrex.agents.jail import PLACEHOLDER, Jail, Service, Terms

_KEY = "OPENAI_API_KEY"
_API = "https://api.openai.com/v1"
# Replies, and the short form of a long conversation. Tools of these kinds run here, all others at the service.
_REQUESTS = ("POST /responses", "POST /responses/compact")
_RUN_HERE = ("custom", "function", "local_shell")
# The jail confines it, and a sandbox of its own needs namespaces that the jail refuses.
_FLAGS = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
# Nothing but the task and the model: nothing sent elsewhere, nothing kept, no instructions beside the prompt; and an
# end where the service cannot be reached, since the program would wait for it for good.
_SETTINGS: dict[str, Any] = {
    "model_provider": "atrex",
    "check_for_update_on_startup": False,
    "cli_auth_credentials_store": "file",
    "analytics.enabled": False,
    "feedback.enabled": False,
    "history.persistence": "none",
    "skills.bundled.enabled": False,
    "shell_environment_policy.inherit": "all",
    "shell_environment_policy.exclude": [_KEY],
    "allow_login_shell": False,  # it would read files of the system that are shut here, or not, as time falls
    "features.unbounded_connection_retries": False,
    "tools.experimental_request_user_input.enabled": False,
    "features.goals": False,
    "features.apps": False,
    "features.hooks": False,
    "features.memories": False,
    "features.plugins": False,
    "features.remote_plugin": False,
    "features.skill_search": False,
    "features.tool_suggest": False,
    "features.image_generation": False,
    "features.browser_use": False,
    "features.computer_use": False,
}
_OF_POLICY: dict[Policy, dict[str, Any]] = {
    "default": {
        "web_search": "disabled",
        "agents.enabled": False,
        "features.sleep_tool": False,
        "features.view_image": False,
    },
    "extended": {"web_search": "live"},
}
# Kinds of error that are the service's, beside those with an HTTP status; and which of all may be over soon.
_PASSING = {
    "flex_unavailable", "internal_server_error", "policy_capacity_unavailable", "rate_limit_exceeded",
    "server_overloaded",
}  # fmt: skip
_PROVIDER = _PASSING | {"unauthorized", "usage_limit_exceeded"}
_REFUSED = (401, 403)
# It gives up at a rate limit that names no time. Seconds until its session is taken up again, with what it has done.
_PAUSES = (5, 20, 60)
_AFTER_PAUSE = ("/bin/sh", "-c", 'sleep "$0"; exec "$@"')  # in the jail, where an interrupt ends it
_GO_ON = "Go on."


@register("codex")
class Codex:
    """Runs `codex exec` with its own tools. It knows no prices: LiteLLM's are taken, for OpenAI's own service."""

    keeps_usd = False

    def __init__(self, choice: Choice):
        self._model, self._base_url = choice.alone().model, cli_stream.address(choice.base_url, _API)
        self._program = cli_stream.find("codex")
        self._key = os.environ.get(_KEY, "")
        self._tools: dict[Policy, tuple[str, ...] | None] = {}
        self._asking = threading.Lock()

    @classmethod
    def needs(cls) -> list[Need]:
        return cli_stream.needs("codex", "@openai/codex", _KEY, "https://platform.openai.com")

    def terms(self, task: Task) -> Terms:
        service = Service(self._base_url, self._key, _REQUESTS, None if task.policy == "extended" else _beyond)
        return Terms(readable=self._program.readable, service=service, device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return (self._key,)

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        yield Message(role="supervisor", text=task.prompt)
        tools = self._offered(task.policy)
        if tools is None:
            yield Ended(how="error", reason="codex did not show which tools it has")
            return
        yield Tools(names=tools)
        if extra := cli_stream.beyond(task.policy, tools):
            reason = f"codex has tools beyond --policy {task.policy}: {', '.join(extra)}"
            yield Ended(how="error", reason=reason)
            return
        argv, env = self._prepare(jail, task.policy)
        reader = CodexReader(Sessions(jail.home / "codex"), chat.price if self._base_url == _API else None)
        prompt = task.prompt
        for pause in (*_PAUSES, None):
            for event in cli_stream.follow(jail, argv, env, prompt, task.deadline, reader):
                failed = isinstance(event, Ended) and event.how == "provider" and reader.resumable
                if failed and pause and time.monotonic() + pause < task.deadline:
                    yield Output(stream="err", text=f"the service failed, again in {pause} s: {event.reason}")
                    argv = [*_AFTER_PAUSE, str(pause), *self._resuming(reader.resumable)]
                    prompt = _GO_ON
                    reader.again()
                    break
                yield event
                if isinstance(event, Ended):
                    return

    def _prepare(self, jail: Jail, policy: Policy) -> tuple[list[str], dict[str, str]]:
        """Write its configuration into a home of its own: (command, environment)."""
        home = jail.home / "codex"
        home.mkdir(exist_ok=True)
        provider = {
            "model_providers.atrex.name": "OpenAI" if self._base_url == _API else "atrex",  # it goes by that name
            "model_providers.atrex.base_url": jail.terms.service.inside,
            "model_providers.atrex.env_key": _KEY,
            "model_providers.atrex.wire_api": "responses",
        }
        (home / "config.toml").write_text(_toml(_SETTINGS | provider | _OF_POLICY[policy]), encoding="utf-8")
        argv = [*self._command(), "-"]
        return argv, {"CODEX_HOME": str(home), _KEY: PLACEHOLDER}

    def _command(self) -> list[str]:
        return [*self._program.argv, *_FLAGS, *(["--model", self._model] if self._model else [])]

    def _resuming(self, thread: str) -> list[str]:
        return [*self._command(), "resume", thread, "-"]

    def _offered(self, policy: Policy) -> tuple[str, ...] | None:
        """The tools that it offers to the model under a policy, asked once."""
        with self._asking:
            if self._tools.get(policy) is None:
                self._tools[policy] = offered(self._program.readable, lambda jail: self._prepare(jail, policy))
            return self._tools[policy]


def _beyond(request: dict[str, Any]) -> str | None:
    """Why a request goes beyond the policy `default`, whoever in the jail makes it: tools that the service runs."""
    others = sorted({str(tool.get("type")) for tool in given_tools(request) if tool.get("type") not in _RUN_HERE})
    return f"tools of the service are off under --policy default: {', '.join(others)}" if others else None


def _toml(settings: dict[str, Any]) -> str:
    """Settings by dotted names. A JSON string, number, list or truth value is one of TOML too."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


class CodexReader:
    """Reads `exec --json`, and the session's file beside it: usage is told with every reply as soon as it is there.

    `price` gives the dollars of a reply of a model, None where they are not known.
    """

    def __init__(self, sessions: Sessions, price: Callable[[str, Usage], float | None] | None = None):
        self._sessions, self._price = sessions, price
        self.waiting = False
        self._model = ""
        self._begun: set[str] = set()
        self._time = 1
        self._told: dict[str | None, Usage] = {}  # by thread: the agent's own, and those of sub-agents
        self._thread: str | None = None
        self._total: Usage | None = None
        self._failed: str | None = None
        self._error: Any = None
        self._done = False

    @property
    def resumable(self) -> str | None:
        """The session that can be taken up again since what ended it may be over soon; None where that is not so."""
        return self._thread if _is_passing(self._error) else None

    def again(self) -> None:
        """The same session goes on in another process: totals go on, items are numbered from the start."""
        self._time += 1
        self._failed = self._error = None
        self._begun.clear()

    def read(self, line: dict[str, Any]) -> Iterator[Event]:
        yield from self._from_session()
        kind = line.get("type")
        if kind == "thread.started":
            self._thread = line["thread_id"]
        elif kind == "turn.completed":
            self._done, self._total = True, _usage(line["usage"])
        elif kind == "turn.failed":
            self._failed = line["error"]["message"]
        elif kind == "error":
            self.waiting = True
            yield Output(stream="err", text=line["message"])
        elif kind in ("item.started", "item.completed"):
            self.waiting = False
            yield from self._item(line["item"], kind == "item.completed")

    def finish(self) -> Iterator[Event]:
        yield from self._from_session()
        if self._total is not None:
            names = ("input", "output", "cached", "reasoning")
            told = self._told.get(self._thread, Usage())  # what sub-agents took is not in the total
            rest = {name: max(0, getattr(self._total, name) - getattr(told, name)) for name in names}
            if rest["input"] or rest["output"]:
                yield self._priced(Usage(**rest))
        if self._failed is not None:
            yield Ended(how="provider" if _is_providers(self._error) else "error", reason=self._failed)
        elif self._done:
            yield Ended(how="done")

    def _from_session(self) -> Iterator[Event]:
        for kind, record in self._sessions.read():
            if kind == "turn_context" and record.get("model"):
                self._model = record["model"]
                yield Model(name=self._model)
            elif kind == "token_usage_record":
                usage = _usage(record["usage"])
                thread = record.get("thread_id")
                self._told[thread] = self._told.get(thread, Usage()) + usage
                if not record["said"]:
                    yield Message(role="agent", text="")  # a reply of tool calls alone is a turn too
                yield self._priced(usage)
            elif kind == "session_meta" and record.get("cli_version"):
                yield Output(stream="out", text=f"Codex {record['cli_version']}")
            elif kind == "event_msg" and record.get("type") == "task_complete" and record.get("error"):
                self._error = record["error"].get("codex_error_info")

    def _priced(self, usage: Usage) -> Usage:
        return usage.model_copy(update={"cost_usd": self._price(self._model, usage)}) if self._price else usage

    def _item(self, item: dict[str, Any], over: bool) -> Iterator[Event]:
        kind, name = item["type"], item["id"] if self._time == 1 else f"{item['id']}/{self._time}"
        if kind == "agent_message":
            if over:
                yield Message(role="agent", text=item["text"])
        elif kind == "reasoning":
            if over:
                yield Message(role="reasoning", text=item["text"])
        elif kind == "error":
            yield Output(stream="err", text=item["message"])
        else:
            answer = ("aggregated_output", "exit_code", "status", "result", "error")
            if name not in self._begun:
                self._begun.add(name)
                given = {key: value for key, value in item.items() if key not in ("id", "type", *answer)}
                yield ToolCall(id=name, tool=kind, arguments=given)
            if over:
                yield ToolResult(id=name, text=_answer(item), failed=item.get("status") in ("failed", "declined"))


def _answer(item: dict[str, Any]) -> str:
    if item["type"] == "command_execution":
        code = item.get("exit_code")
        return item.get("aggregated_output", "") + (f"\n[exit status {code}]" if code else "")
    for key in ("error", "result"):
        if item.get(key) is not None:
            return item[key] if isinstance(item[key], str) else json.dumps(item[key])
    return str(item.get("status", ""))


def _usage(given: dict[str, Any]) -> Usage:
    return Usage(
        input=given.get("input_tokens", 0),
        output=given.get("output_tokens", 0),
        cached=given.get("cached_input_tokens", 0),
        reasoning=given.get("reasoning_output_tokens", 0),
    )


def _is_providers(error: Any) -> bool:
    status = _status(error)
    return status is None or cli_stream.is_providers(status) if isinstance(error, dict) else error in _PROVIDER


def _is_passing(error: Any) -> bool:
    return _is_providers(error) and _status(error) not in _REFUSED and (isinstance(error, dict) or error in _PASSING)


def _status(error: Any) -> int | None:
    """Of `codex_error_info`: a word, or a word with the HTTP status, which is None when there was no answer."""
    details = next(iter(error.values()), None) if isinstance(error, dict) else None
    return details.get("http_status_code") if isinstance(details, dict) else None
