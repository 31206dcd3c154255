"""`api:MODEL`: a model behind an interface, and the least that makes an agent of it: a loop with four tools.

The model is asked from here, so that keys and the network stay outside; the tools run in the jail, which has no
network at all. Both tool policies mean the same four tools: there is no tool for the web.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from atrex.agents.base import Choice, Need, Task, register
from atrex.agents.chat import EXTRA, PACKAGE, Call, Chat, Failure, Reply, installed, keys, plain
from atrex.agents.events import Ended, Event, Message, Model, Output, ToolCall, ToolResult, Tools
from atrex.agents.jail import Jail, Terms
from atrex.agents.tools import NAMES, Toolbox, schemas
from atrex.errors import UserError

BACK_OFF = (2.0, 10.0, 30.0)  # seconds before a service that failed is asked again
_LONGEST_WAIT = 120.0  # of what a service may ask for
_LOOK_EVERY = 0.1
_CUT_OFF = 5  # replies in a row
_REMINDERS = 2

SYSTEM = (
    "You work alone in a sandbox, in the folder {workspace}, with the tools read, write, edit and shell. Nobody "
    "answers questions. Go on until the task is done; a reply without a tool call ends your work."
)
GO_ON = "Your reply was cut off at the longest that one can be. Go on from there, in smaller steps."
REMINDER = "{output} is not there yet. Go on, or say once more that you are done."


@register("api")
class Api:
    """Asks MODEL, given as LiteLLM names it (PROVIDER/MODEL), or a service of one's own at `--base-url`."""

    keeps_usd = False

    def __init__(self, choice: Choice):
        names = [name for name in (choice.argument, choice.model) if name]
        if not names:
            raise UserError("--agent api: no model; expected api:MODEL, such as api:openai/gpt-5")
        if len(set(names)) > 1:
            raise UserError(f"--agent api:{names[0]} --model {names[1]}: two models; expected one")
        self._chat = Chat(names[0], choice.base_url)

    @classmethod
    def needs(cls) -> list[Need]:
        return [Need(PACKAGE, installed(), EXTRA)]

    def terms(self, task: Task) -> Terms:
        return Terms(device=task.device)

    def secrets(self) -> tuple[str, ...]:
        return keys()

    def work(self, task: Task, jail: Jail) -> Iterator[Event]:
        tools = Toolbox(jail, task.deadline)
        tools.start()
        try:
            yield from _Conversation(self._chat, task, jail, tools).events()
        except Failure as failure:
            how = "error" if failure.how == "error" else "provider"
            yield Ended(how=how, reason=failure.reason, again=failure.how == "again")
        except TimeoutError:
            yield Ended(how="timeout")


class _Conversation:
    def __init__(self, chat: Chat, task: Task, jail: Jail, tools: Toolbox):
        self._chat, self._task, self._jail, self._tools = chat, task, jail, tools
        self._messages: list[dict[str, Any]] = []
        self._models: set[str] = set()
        self._seen: set[str] = set()  # ids of calls

    def events(self) -> Iterator[Event]:
        """All of it. Raises Failure, TimeoutError, JailError."""
        yield Tools(names=NAMES)
        yield self._say("system", SYSTEM.format(workspace=self._jail.workspace))
        yield self._say("user", self._task.prompt)
        cut_off = reminders = 0
        while True:
            reply = yield from self._reply()
            yield from self._told(reply)
            if reply.finish == "content_filter":
                raise Failure("error", "the provider's content filter ended the reply")
            yield from self._use(reply)
            cut_off = cut_off + 1 if reply.finish == "length" else 0
            if cut_off == _CUT_OFF:
                raise Failure("error", f"{_CUT_OFF} replies in a row were cut off at the model's output limit")
            if reply.calls:
                continue
            if cut_off:
                yield self._say("user", GO_ON)
            elif reminders < _REMINDERS and not os.path.lexists(self._jail.workspace / self._task.output):
                reminders += 1
                yield self._say("user", REMINDER.format(output=self._task.output))
            else:
                yield Ended(how="done")
                return

    def _say(self, role: str, text: str) -> Message:
        self._messages.append({"role": role, "content": text})
        return Message(role="supervisor", text=text)

    # -- the model -------------------------------------------------------------------------------------------------

    def _reply(self) -> Generator[Event, None, Reply]:
        """The next reply; a service that fails is asked again a few times."""
        for pause in (*BACK_OFF, None):
            try:
                return (yield from self._ask())
            except Failure as failure:
                wait = min(max(pause or 0.0, failure.wait or 0.0), _LONGEST_WAIT)
                if failure.how != "again" or pause is None or time.monotonic() + wait > self._task.deadline:
                    raise
                yield Output(stream="err", text=f"{failure.reason}; asked again in {wait:g} s")
            yield from self._wait_for(threading.Event(), wait)
        raise AssertionError("not reached")

    def _ask(self) -> Generator[Event, None, Reply]:
        """In a thread: a service that hangs must not hold up the end of the time, nor an interrupt."""
        stop, over, found = threading.Event(), threading.Event(), []

        def ask() -> None:
            try:
                found.append(self._chat.ask(self._messages, schemas(), stop))
            except Failure as failure:
                found.append(failure)
            except Exception as error:
                found.append(Failure("error", plain(f"{type(error).__name__}: {error}")))
            finally:
                over.set()

        threading.Thread(target=ask, name="model", daemon=True).start()
        try:
            yield from self._wait_for(over)
        finally:
            stop.set()
        if isinstance(found[0], Failure):
            raise found[0]
        return found[0]

    def _wait_for(self, over: threading.Event, seconds: float = math.inf) -> Iterator[Event]:
        """Until `over` is set, or for some seconds. Raises TimeoutError at the problem's deadline.

        Tools that are ended meanwhile are started anew, and that is told: whoever follows the events sees then
        whether the run was interrupted.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not over.wait(min(left, _LOOK_EVERY)):
            if time.monotonic() >= self._task.deadline:
                raise TimeoutError
            if not self._jail.alive:
                yield Output(stream="err", text=f"the sandbox was ended{self._excess()} and is started anew")
                self._tools.start()

    def _excess(self) -> str:
        return f": it {self._jail.excess}" if self._jail.excess else ""

    def _told(self, reply: Reply) -> Iterator[Event]:
        if reply.model not in self._models:
            self._models.add(reply.model)
            yield Model(name=reply.model)
        if reply.reasoning:
            yield Message(role="reasoning", text=reply.reasoning)
        yield Message(role="agent", text=reply.text)
        if reply.usage is not None:
            yield reply.usage

    # -- its tools -------------------------------------------------------------------------------------------------

    def _use(self, reply: Reply) -> Iterator[Event]:
        """Use the tools that were called, in their order, and put calls and results into the conversation."""
        if not reply.calls:
            if reply.text:
                self._messages.append(reply.message)
            return
        calls = [self._named_apart(call) for call in reply.calls]
        parsed = [_arguments(call.arguments) for call in calls]
        own = [dict(each) for each in reply.message["tool_calls"]]
        for each, call, arguments in zip(own, calls, parsed, strict=True):
            text = (
                call.arguments if isinstance(arguments, dict) else "{}"
            )  # what is no JSON, providers do not take back
            each |= {"id": call.id, "function": each["function"] | {"name": call.name, "arguments": text}}
        self._messages.append(reply.message | {"tool_calls": own})
        for call, arguments in zip(calls, parsed, strict=True):
            if isinstance(arguments, dict):
                yield ToolCall(id=call.id, tool=call.name, arguments=arguments)
                result = self._tools.call(call.name, arguments)
                text, failed = result.text, result.failed
            else:
                yield ToolCall(id=call.id, tool=call.name, arguments={"not_json": call.arguments})
                text, failed = arguments, True
                if reply.finish == "length":
                    text += "; the reply was cut off at the longest that one can be: call again with less"
            yield ToolResult(id=call.id, text=text, failed=failed)
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    def _named_apart(self, call: Call) -> Call:
        """With an id and a name; some services give none, or the same twice."""
        name = call.id if call.id and call.id not in self._seen else f"call_{len(self._seen)}"
        self._seen.add(name)
        return replace(call, id=name, name=call.name or "unnamed")


def _arguments(text: str) -> dict[str, Any] | str:
    """The arguments of a call, or what is wrong with them."""
    try:
        found = plain(json.loads(text or "{}"))
    except (ValueError, RecursionError) as error:
        return f"the arguments are no JSON: {error}"
    return found if isinstance(found, dict) else "the arguments are no JSON object"
