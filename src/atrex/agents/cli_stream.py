"""What agents that are command-line programs of others have in common: where they lie, and how their stream is read.

A `Reader` turns the JSON lines of one such program into events; `follow` starts the program and feeds it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atrex.agents.base import Need, Policy
from atrex.agents.events import Ended, Event, Output
from atrex.agents.jail import Jail
from atrex.agents.jail.ask import parse_host
from atrex.errors import UserError

_BEYOND_DEFAULT = re.compile(r"web|browser|agent|notebook|task", re.IGNORECASE)
# Of the service, not of the agent: refused keys, timeouts, rates, overload, failures.
_PROVIDER = (401, 403, 408, 409, 429)


@dataclass(frozen=True)
class Program:
    """How an installed program is started in a jail, and what of it has to be readable there."""

    argv: tuple[str, ...]
    readable: tuple[str, ...]


def find(name: str) -> Program | None:
    """A program on the PATH: its own package, with those beside it that hold its binaries, and node if it needs it."""
    path = shutil.which(name)
    if path is None:
        return None
    real = Path(path).resolve()
    package = next((folder for folder in real.parents if _is_package(folder)), None)
    readable = [real]
    if package is not None:
        beside = package.parent.glob(f"{package.name}-*")
        readable = [package, *(each.resolve() for each in beside)]
    argv = [str(real)]
    if _wants_node(real):
        node = shutil.which("node")
        if node is None:
            return None
        node = os.path.realpath(node)
        argv, readable = [node, *argv], [Path(node), *readable]
    return Program(tuple(argv), tuple(map(str, readable)))


def _is_package(folder: Path) -> bool:
    """Whether npm has put it there: a package.json alone may lie in a home folder too, which is nobody's to read."""
    above = folder.parent.parent if folder.parent.name.startswith("@") else folder.parent
    return above.name == "node_modules" and (folder / "package.json").is_file()


def _wants_node(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(256)
    return first.startswith(b"#!") and b"node" in first


def needs(program: str, package: str, key: str, where: str) -> list[Need]:
    """The two things that such an agent needs: the program, and a key in the environment."""
    return [
        Need(program, find(program) is not None, f"npm install -g {package} (with Node.js 18 or newer)"),
        Need(key, bool(os.environ.get(key)), f"export {key}=..., a key from {where}"),
    ]


def address(base_url: str | None, usual: str) -> str:
    """Where the model answers. Raises UserError for a base URL that is none."""
    try:
        parse_host(base_url or usual)
    except ValueError as error:
        raise UserError(f"--base-url {error}") from None
    return base_url or usual


def beyond(policy: Policy, tools: Iterable[str]) -> list[str]:
    """The tools that go beyond a policy: `default` knows no web, no browser, no other agents, no notebooks."""
    return [] if policy == "extended" else [name for name in tools if _BEYOND_DEFAULT.search(name)]


def is_providers(status: int) -> bool:
    """Whether an HTTP status tells of the service and not of what it was asked."""
    return status in _PROVIDER or status >= 500


class Reader(Protocol):
    """Makes events of what one program prints. `waiting`: the service has failed it, and has not answered since."""

    waiting: bool

    def read(self, line: dict[str, Any]) -> Iterable[Event]:
        """The events of one JSON line."""

    def finish(self) -> Iterable[Event]:
        """What is known only when the program has ended, `Ended` as the last; none if it did not say how it ended."""


def follow(
    jail: Jail, argv: list[str], env: dict[str, str], prompt: str, deadline: float, reader: Reader
) -> Iterator[Event]:
    """The events of a program that is given the prompt on its standard input; the last is `Ended`."""
    last, ended = "", None
    jail.start(argv, env, stdin=prompt.encode())
    try:
        for stream, text in jail.lines(deadline):
            line = _object(text) if stream == "out" else None
            if line is None:
                if text.strip():
                    last = text
                    yield Output(stream=stream, text=text)
                continue
            for event in reader.read(line):
                yield event
                if isinstance(event, Ended):
                    return
        status = jail.wait()
        if jail.excess:
            ended = Ended(how="error", reason=f"it {jail.excess}")
    except TimeoutError:
        waited = Ended(how="provider", reason="its time ended while it waited for the service")
        ended = waited if reader.waiting else Ended(how="timeout")
    finally:
        jail.stop()
    for event in reader.finish():
        if not isinstance(event, Ended):
            yield event  # what it took, also where it was stopped
        elif ended is None:
            ended = event
    yield ended or Ended(how="error", reason=f"it ended without a result, exit status {status}{last and f': {last}'}")


def _object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
