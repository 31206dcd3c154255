"""`--pid`: recording a running Python process without relaunching it and without code in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from atrex.errors import UserError
from atrex.traces.record import inject, payload, target
from atrex.traces.record.shared_folder import SharedFolder
from atrex.traces.record.target import Target
from atrex.traces.record.window import Recorded, Window

PATIENCE = 60.0  # seconds that the main thread may take to come to a safe point
NOTICE = 2.0  # seconds of waiting after which it is said what is waited for
REMOTE_EXEC = (3, 14)  # the first CPython with sys.remote_exec (PEP 768)
_POLL = 0.01

Tell = Callable[[str], None]


def record_pid(
    pid: int, window: Window, out: Path, tell: Tell = lambda line: None, patience: float = PATIENCE
) -> Recorded:
    """Attach to a process, record a window of it and leave its trace at `out`.

    Raises UserError where that is not allowed, where the process runs no torch, where it is being recorded already, and
    where its main thread does not come to a safe point within `patience` seconds.
    """
    where = target.inspect(pid)
    if not where.torch:
        raise UserError(f"--pid {pid}: no torch is loaded in it{_children_with_torch(pid)}")
    about = target.status(pid)
    owner = (int(about["Uid"].split()[1]), int(about["Gid"].split()[1]))
    with SharedFolder(_root(pid), _places(pid), owner) as folder:
        source = call_text(folder.inside, window)
        began = time.monotonic()
        if where.version >= REMOTE_EXEC and _remote_exec(where, source, folder):
            done = None
        else:
            done = inject.inject(where, source, patience=min(patience, 10.0))
        first = _await(where, folder, {}, tell, patience, "the recording begins when it returns to Python")
        if done is not None:
            inject.release(where, done.region)
        waited = time.monotonic() - began
        if first["state"] == "recording":
            tell(f"recording {pid}{f' for {window.seconds:g} s' if not window.steps else f', {window.steps} steps'}")
        last = first
        while last["state"] in ("recording", "stopping"):
            spare = window.seconds if last["state"] == "recording" else None
            last = _await(where, folder, last, tell, None, "the recording ends when it returns to Python", spare)
        if last["state"] != "done":
            raise UserError(f"--pid {pid}: {last.get('reason', last['state'])}")
        folder.deliver("trace.json", out)
    notes = list(last.get("notes", []))
    if not first.get("device"):
        notes.append("no CUDA or HIP context was in it: the trace has no device records")
    if window.steps and last["steps"] < window.steps:
        notes.append(f"the window of {window.seconds:g} s ended after {last['steps']} of {window.steps} steps")
    details = {"pid": pid, "python": ".".join(map(str, where.version)), "waited_s": round(waited, 4)}
    details["writing_s"] = round(last["writing"], 4)
    if done is not None:
        details |= {"paused_s": round(done.paused_s, 6), "tries": done.tries}
    return Recorded([out], round(last["seconds"], 4), last["steps"], notes, details)


def call_text(folder: str, window: Window, **more: str) -> str:
    """One statement that runs the payload in a namespace of its own, leaves no name behind, and never raises."""
    options = {"seconds": window.seconds, "steps": window.steps, "stack": window.stack, **more}
    text = f"{Path(payload.__file__).read_text()}\nbegin({folder!r}, **{options!r})\n"
    return (
        "try:\n"
        " (lambda b, t: b.exec(b.compile(t, '<atrex recorder>', 'exec'), {'__name__': '_atrex_recorder'}))"
        f"(__import__('builtins'), {text!r})\n"
        "except BaseException:\n"
        " pass\n"
    )


def _root(pid: int) -> Path:
    """The process's view of the file system, which in a container is not ours."""
    same = all(os.path.samefile(f"/proc/{pid}/{what}", f"/proc/self/{what}") for what in ("ns/mnt", "root/."))
    return Path("/" if same else f"/proc/{pid}/root")


def _places(pid: int) -> list[str]:
    """Where the process can write, best first."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        environment = []
    named = [os.fsdecode(line[7:]) for line in environment if line.startswith(b"TMPDIR=/")]
    return [*named, "/tmp", "/var/tmp", "/dev/shm"]


def _children_with_torch(pid: int) -> str:
    """Which of its children have torch loaded, for the message: engines do their work in them."""
    found, waiting = [], [pid]
    while waiting:
        try:
            tasks = list(Path(f"/proc/{waiting[0]}/task").iterdir())
            children = {int(c) for t in tasks for c in (t / "children").read_text().split()}
        except OSError:
            children = set()
        waiting = waiting[1:] + sorted(children)
        for child in children:
            try:
                if "libtorch_python.so" in Path(f"/proc/{child}/maps").read_text(errors="replace"):
                    found.append(child)
            except OSError:
                continue
    return f"; its children with torch: {', '.join(map(str, sorted(found)))}" if found else ""


def _remote_exec(where: Target, source: str, folder: SharedFolder) -> bool:
    """CPython's own way, which asks for the same version at both ends: ours, else the process's own interpreter.

    False where the process was started without it (PYTHON_DISABLE_REMOTE_DEBUG): the injector needs no such support.
    """
    script = folder.path / "begin.py"
    script.write_text(source)
    script.chmod(0o644)
    inside = f"{folder.inside}/begin.py"
    try:
        if sys.version_info[:2] == where.version:
            sys.remote_exec(where.pid, inside)
            return True
        ask = f"import sys; sys.remote_exec({where.pid}, {inside!r})"
        return not subprocess.run(
            [f"/proc/{where.pid}/exe", "-I", "-c", ask], capture_output=True, timeout=30
        ).returncode
    except PermissionError:
        raise UserError(target.refusal(where.pid)) from None
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return False


def _await(
    where: Target,
    folder: SharedFolder,
    last: dict,
    tell: Tell,
    patience: float | None,
    when: str,
    spare: float | None = 0.0,
) -> dict:
    """The next word from the process. `spare`: seconds that it may be silent without a notice, None for any time."""
    began, noticed = time.monotonic(), ""
    while True:
        word = folder.status()
        if word and word.get("state") != last.get("state"):
            return word
        if not target.alive(where.pid):
            raise UserError(f"--pid {where.pid}: the process ended before its trace was written")
        silent = time.monotonic() - began
        if spare is not None and silent > spare + NOTICE:
            state = target.whereabouts(where.pid)
            if state != noticed:
                noticed = state
                tell(f"the main thread of {where.pid} {state}; {when}")
        if patience is not None and silent > patience:
            raise UserError(
                f"--pid {where.pid}: its main thread {target.whereabouts(where.pid)} "
                f"and came to no safe point in {patience:g} s"
            )
        time.sleep(_POLL)
