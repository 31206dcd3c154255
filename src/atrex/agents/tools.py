"""Tools for a model that brings none: what it is told of them, and their server in the jail."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.agents import tool_server
from atrex.agents.jail import Jail, JailError

NAMES = tuple(tool_server.TOOLS)
_KEPT = tool_server.HEAD + tool_server.TAIL
_GRACE = 15.0  # seconds that a tool has to answer beyond what its command may take
_PATIENCE = 60.0  # seconds for a tool that runs no command
_NEW_STARTS = 5

_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_ABOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "read": (
        f"Read a text file: {tool_server.PAGE} lines from line `offset` (1 is the first), or `limit` lines. A result "
        f"longer than {_KEPT} characters is cut.",
        {"path": _TEXT, "offset": _NUMBER, "limit": _NUMBER},
    ),
    "write": (
        "Make a file with `content`, or replace it whole. Folders are made as needed.",
        {"path": _TEXT, "content": _TEXT},
    ),
    "edit": (
        "Replace the one place of a file where the text `old` stands by `new`; every such place with `every`. `old` "
        "has to match exactly.",
        {"path": _TEXT, "old": _TEXT, "new": _TEXT, "every": _FLAG},
    ),
    "shell": (
        f"Run a bash command in the workspace; every command starts there anew. It may take `timeout` seconds, "
        f"{tool_server.SECONDS} if not given, {tool_server.MOST_SECONDS} at most, and what it leaves in the background "
        f"is ended with it. Of output longer than {_KEPT} bytes the middle is left out.",
        {"command": _TEXT, "timeout": _NUMBER},
    ),
}


def schemas() -> list[dict[str, Any]]:
    """The tools in the form of the chat-completions protocol."""
    return [_schema(name, *_ABOUT[name]) for name in NAMES]


def _schema(name: str, about: str, properties: dict[str, Any]) -> dict[str, Any]:
    must = [each for each, (_, needed) in tool_server.TOOLS[name][1].items() if needed]
    parameters = {"type": "object", "properties": properties, "required": must, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


@dataclass(frozen=True)
class Result:
    """What a tool says, for the model."""

    text: str
    failed: bool = False


class Toolbox:
    """The tools of one jail. They run in one program there, which is started anew when it has to be ended.

    `deadline` is the problem's, in time.monotonic().
    """

    def __init__(self, jail: Jail, deadline: float):
        self._jail, self._deadline = jail, deadline
        self._calls = self._starts = 0

    def start(self) -> None:
        """Raises JailError when the jail cannot be made, or what runs in it had to be ended too often."""
        why = self._jail.excess
        if self._starts > _NEW_STARTS:
            raise JailError(f"it {why}" if why else "its tools had to be started anew too often")
        self._starts += 1
        self._jail.stop()
        source = Path(tool_server.__file__).read_text(encoding="utf-8")
        self._jail.start([sys.executable, "-I", "-S", "-c", source], talk=True)

    def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        """Use a tool. Whatever goes wrong inside is a result too.

        Raises TimeoutError at the problem's deadline, and JailError as `start`.
        """
        if tool not in NAMES:
            return Result(f"there is no tool {tool!r}, only {', '.join(NAMES)}", failed=True)
        self._calls += 1
        until = min(self._deadline, time.monotonic() + _patience(tool, arguments))
        request = {"id": self._calls, "tool": tool, "arguments": arguments}
        try:
            self._jail.send(json.dumps(request).encode() + b"\n", until)
            for _, line in self._jail.lines(until):
                if (result := _parse(line, self._calls)) is not None:
                    return result
        except TimeoutError:
            if time.monotonic() >= self._deadline:
                raise
            return self._start_anew("the tool did not answer in time")
        except BrokenPipeError:
            pass
        return self._start_anew(None)

    def _start_anew(self, why: str | None) -> Result:
        self._jail.wait(1.0)
        excess = self._jail.excess
        why = why or (f"everything in the sandbox was ended: it {excess}" if excess else "the tools were ended")
        self.start()
        return Result(f"{why}; the sandbox has been started anew, your files are kept", failed=True)


def _patience(tool: str, arguments: dict[str, Any]) -> float:
    if tool != "shell":
        return _PATIENCE
    asked = arguments.get("timeout")
    asked = asked if isinstance(asked, int | float) else tool_server.SECONDS
    return min(max(asked, 1), tool_server.MOST_SECONDS) + _GRACE


def _parse(line: str, number: int) -> Result | None:
    """The answer to a call. None for any other line: what runs in the jail may print what it likes."""
    try:
        said = json.loads(line)
        if said["id"] != number:
            return None
        text, failed = said["text"], said["failed"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return Result(text[: 2 * _KEPT], failed) if isinstance(text, str) and isinstance(failed, bool) else None
