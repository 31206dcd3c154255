"""The tools of an agent that has none of its own: a program that runs in its jail, one JSON line in, one line out.

It is handed over as text and run by a bare interpreter, so it imports the standard library alone. It asks nothing of
the paths that it is given: what may be read and written is the jail's business. A request is {"id", "tool",
"arguments"}, its answer {"id", "text", "failed"}.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time

HEAD, TAIL = 8_000, 12_000  # bytes that are kept of the begin and the end of an output that is longer than both
LARGEST = 8 << 20  # bytes of a file that is read or edited
PAGE = 1000  # lines of a file that are read at a time
SECONDS, MOST_SECONDS = 120, 600  # how long a command may take: unless it is told, and at most


class Refused(Exception):
    """A tool cannot do what was asked; the text is for the model."""


class Ends:
    """The first and the last bytes of a stream, whatever its length."""

    def __init__(self) -> None:
        self.head, self.tail, self.left_out = b"", b"", 0

    def add(self, data: bytes) -> None:
        room = HEAD - len(self.head)
        self.head, data = self.head + data[:room], data[room:]
        both = self.tail + data
        self.tail = both[-TAIL:]
        self.left_out += len(both) - len(self.tail)

    def text(self) -> str:
        if not self.left_out:
            return (self.head + self.tail).decode(errors="replace")
        cut = f"\n[{self.left_out} bytes left out here]\n"
        return self.head.decode(errors="replace") + cut + self.tail.decode(errors="replace")


def read(path: str, offset: int = 1, limit: int = PAGE) -> str:
    """Lines of a text file, from line `offset` on."""
    lines = io.StringIO(_load(path), newline="\n").readlines()
    first, page = max(1, offset), []
    room = HEAD + TAIL
    for line in lines[first - 1 : first - 1 + max(1, limit)]:
        if len(line) > room and page:
            break
        page.append(line[:room])
        room -= len(page[-1])
        if len(line) > len(page[-1]):
            page.append(f"[{len(line) - len(page[-1])} characters of this line left out]\n")
            return "".join(page) + f"[line {first} of {len(lines)}]"
    text = "".join(page)
    if len(page) == len(lines):
        return text
    last = first + len(page) - 1
    if not page:
        return f"[no line {first}: it has {len(lines)}]"
    return text.rstrip("\n") + f"\n[lines {first} to {last} of {len(lines)}]"


def write(path: str, content: str) -> str:
    """Make a file, or replace it."""
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    data = content.encode(errors="replace")
    with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()
        file.write(data)
    return f"{len(data)} bytes written to {path}"


def edit(path: str, old: str, new: str, every: bool = False) -> str:
    """Replace the only place of a file where `old` stands, or every one."""
    text = _load(path)
    count = text.count(old) if old else 0
    if not old:
        raise Refused("old: is empty; give the text that is to be replaced")
    if count == 0:
        raise Refused(f"old: is not in {path}; it has to match exactly, with its white space")
    if count > 1 and not every:
        raise Refused(f"old: stands {count} times in {path}; give more of what is around it, or every=true")
    write(path, text.replace(old, new))
    return f"{count} replaced in {path}"


def shell(command: str, timeout: int = SECONDS) -> str:
    """Run a command with a time limit in seconds. What it leaves running is ended with it."""
    seconds = min(max(1, timeout), MOST_SECONDS)
    name = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    process = subprocess.Popen(
        [name, "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = Ends()
    try:
        in_time = _follow(process, output, time.monotonic() + seconds)
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        status = process.wait()
    text = output.text()
    if text and not text.endswith("\n"):
        text += "\n"
    if not in_time:
        raise Refused(f"{text}[ended after {seconds} s, its time limit]")
    how = f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
    if status:
        raise Refused(f"{text}[{how}]")
    return f"{text}[{how}]"


def _follow(process: subprocess.Popen, output: Ends, end: float) -> bool:
    """Read until the command has ended and nothing more is there. Whether that was before `end`.

    The output's end is not waited for: what the command has left in the background may hold it open.
    """
    fd, open_yet = process.stdout.fileno(), True
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return False
        if not open_yet:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left)
                return True
            continue
        if select.select([fd], [], [], min(left, 0.05))[0]:
            data = os.read(fd, 1 << 16)
            open_yet = bool(data)
            output.add(data)
        elif process.poll() is not None:
            return True


def _open(path: str, flags: int) -> int:
    """A regular file; a pipe or a device could keep us waiting. Raises Refused, OSError."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused(f"{path}: is no plain file")
    return fd


def _load(path: str) -> str:
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise Refused(f"{path}: is larger than {LARGEST >> 20} MiB; look at parts of it with the shell")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused(f"{path}: is no UTF-8 text") from None


# Arguments of each tool: their type, and whether they must be given.
TOOLS = {
    "read": (read, {"path": (str, True), "offset": (int, False), "limit": (int, False)}),
    "write": (write, {"path": (str, True), "content": (str, True)}),
    "edit": (edit, {"path": (str, True), "old": (str, True), "new": (str, True), "every": (bool, False)}),
    "shell": (shell, {"command": (str, True), "timeout": (int, False)}),
}
_NAMES = {str: "text", int: "a whole number", bool: "true or false"}


def _checked(given: dict, known: dict) -> dict:
    for name in given:
        if name not in known:
            raise Refused(f"{name}: no such argument; expected {', '.join(known)}")
    found = {}
    for name, (kind, must) in known.items():
        value = given.get(name)
        if value is None:
            if must:
                raise Refused(f"{name}: is missing; expected {_NAMES[kind]}")
            continue
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not kind:
            raise Refused(f"{name}: expected {_NAMES[kind]}")
        if kind is str and "\0" in value and name != "content":
            raise Refused(f"{name}: holds a zero byte")
        found[name] = value
    return found


def answer(request: dict) -> tuple[str, bool]:
    """(text, whether it failed) for one request."""
    try:
        tool, known = TOOLS[request["tool"]]
        return tool(**_checked(request["arguments"], known)), False
    except Refused as refused:
        return str(refused), True
    except OSError as error:
        return f"{error.filename or request['tool']}: {error.strerror}", True
    except Exception as error:
        return f"{type(error).__name__}: {error}", True


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        text, failed = answer(request)
        print(json.dumps({"id": request["id"], "text": text, "failed": failed}), flush=True)


if __name__ == "__main__":
    main()
