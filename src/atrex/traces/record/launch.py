"""`-- CMD`: starting a Python program under the profiler, with no change to its code; others by a vendor's recorder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from atrex.errors import UserError
from atrex.traces.record import payload
from atrex.traces.record.shared_folder import SharedFolder
from atrex.traces.record.window import Recorded, Window, deliver, numbered

PYTHON, SHELL, OTHER = "python", "shell", "other"
_PYTHON_NAME = re.compile(r"python(\d+(\.\d+)?)?t?$")
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "ash"}
_VALUED = "cmWXQ"  # options of python that take the rest of the word or the next one
_IGNORING = {"I": "isolates it from PYTHONPATH", "E": "makes it ignore PYTHONPATH", "S": "keeps it from loading site"}

# Loaded by `site` before the program, from the front of PYTHONPATH. One that stood there before is loaded after it.
_SITE = """\
import os as _os
import sys as _sys

_here = _os.path.dirname(_os.path.abspath(__file__))
_sys.path[:] = [path for path in _sys.path if path != _here]
try:
    with open(_os.path.join(_here, "payload.py")) as _file:
        _names = {{"__name__": "_atrex_recorder"}}
        exec(compile(_file.read(), "<atrex recorder>", "exec"), _names)
    _names["launch"]({folder!r}, **{options!r})
except Exception:
    pass
_mine = _sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError:
    _sys.modules["sitecustomize"] = _mine
"""


def kind_of(command: Sequence[str]) -> str:
    """What a command starts: PYTHON, SHELL (whose children may be Python) or OTHER. Raises UserError.

    A Python that would not load what is put on its path is an error, with the option that keeps it from that.
    """
    path = shutil.which(command[0])
    if path is None:
        raise UserError(f"{command[0]}: no such program")
    words, first = [command[0], *command[1:]], Path(path).resolve()
    with open(path, "rb") as file:
        head = file.read(256)
    if head[:2] == b"#!":
        words = shlex.split(head[2:].split(b"\n")[0].decode(errors="replace")) or ["sh"]
        if Path(words[0]).name == "env":
            words = [w for w in words[1:] if "=" not in w and w != "-S"] or ["sh"]
        first = Path(words[0])
    names = {Path(words[0]).name, first.name, Path(command[0]).name}
    if any(_PYTHON_NAME.match(name) for name in names):
        for option in _options(words[1:]):
            if option in _IGNORING:
                raise UserError(f"python -{option} {_IGNORING[option]}, by which the recorder comes in: leave it out")
        return PYTHON
    return SHELL if names & _SHELLS else OTHER


def _options(words: Sequence[str]) -> list[str]:
    """The single-letter options of a Python command line, up to the program."""
    found, at = [], 0
    while at < len(words) and re.match(r"-[A-Za-z]", words[at]):
        for position, letter in enumerate(words[at][1:], 1):
            if letter in "cm":
                return found
            if letter in _VALUED:
                at += position == len(words[at]) - 1
                break
            found.append(letter)
        at += 1
    return found


def record_command(
    command: Sequence[str],
    window: Window,
    out: Path,
    tell: Callable[[str], None] = lambda line: None,
    delay: float = 0.0,
) -> Recorded:
    """Run a program and record each of its processes that uses torch; the largest trace comes to `out`.

    The window begins when torch is loaded and, on a machine with a GPU, has initialized it, `delay` seconds later. The
    program runs on to its own end. Raises UserError for programs that cannot be recorded and where nothing was.
    """
    kind = kind_of(command)
    if kind == OTHER:
        return _by_vendor(command, window, out, tell, delay)
    with SharedFolder(Path("/"), [tempfile.gettempdir(), "/tmp"], (os.geteuid(), os.getegid())) as folder:
        site = folder.path / "site"
        site.mkdir()
        options = {"seconds": window.seconds, "steps": window.steps, "stack": window.stack, "delay": delay}
        shutil.copyfile(payload.__file__, site / "payload.py")
        (site / "sitecustomize.py").write_text(_SITE.format(folder=folder.inside, options=options))
        before = os.environ.get("PYTHONPATH")
        environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{before}" if before else str(site)}
        returned = _run(command, environment)
        words = [folder.status(path.name) for path in sorted(folder.path.glob("status-*.json"))]
        traces = {
            word["pid"]: folder.path / f"trace-{word['pid']}.json" for word in words if word.get("state") == "done"
        }
        done = sorted((w for w in words if w.get("pid") in traces), key=lambda w: -traces[w["pid"]].stat().st_size)
        ended = f"{command[0]} ended with status {returned}"
        if not done:
            raise UserError(f"{ended}; {_why_nothing(words)}")
        files = [folder.deliver(traces[word["pid"]].name, numbered(out, i)) for i, word in enumerate(done)]
    notes = [note for word in done[:1] for note in word["notes"]] + ([ended] if returned else [])
    notes += [_word(word) for word in words if word not in done]
    details = {"command": list(command), "returned": returned, "pids": [word["pid"] for word in done]}
    return Recorded(files, round(done[0]["seconds"], 4), done[0]["steps"], notes, details)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Ctrl-C is for the program, which shares the terminal; it decides when it ends."""
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _word(word: dict) -> str:
    return f"process {word.get('pid')}: {word.get('reason', 'ended before its trace was written')}"


def _why_nothing(words: list[dict]) -> str:
    if words:
        return "; ".join(_word(word) for word in words)
    if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd")):
        return "nothing was recorded: no Python process of it used torch on the GPU for as long as --delay says"
    return "nothing was recorded: no Python process of it imported torch for as long as --delay says"


def _by_vendor(
    command: Sequence[str], window: Window, out: Path, tell: Callable[[str], None], delay: float
) -> Recorded:
    """A program that is not Python: by Nsight Systems or rocprofv3, where one is installed."""
    tool = next((name for name in ("nsys", "rocprofv3") if shutil.which(name)), None)
    if tool is None:
        raise UserError(
            f"{command[0]}: neither Python nor a shell script, and torch.profiler can only be brought into Python: "
            "install nsys or rocprofv3, with which other programs are recorded"
        )
    if window.steps:
        raise UserError(f"--steps: {tool} knows no steps of {command[0]}: give --seconds")
    tell(f"{command[0]} is not Python: recording with {tool}")
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "trace"
        if tool == "nsys":
            _tool([tool, "profile", "--trace=cuda,nvtx", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none",
                   f"--delay={delay:g}", f"--duration={window.seconds:g}", "--kill=none", f"--output={base}",
                   *command])  # fmt: skip
            _tool([tool, "export", "--type=sqlite", f"--output={base}.sqlite", f"{base}.nsys-rep"])
            written = base.with_suffix(".sqlite")
        else:
            _tool([tool, "--kernel-trace", "--hip-trace", "--marker-trace", "--output-format", "json",
                   "--collection-period", f"{delay:g}:{window.seconds:g}:1", "-d", scratch, "-o", "trace", "--",
                   *command])  # fmt: skip
            written = next(Path(scratch).rglob("*_results.json"), base)
        if not written.exists():
            raise UserError(f"{tool} wrote no trace of {command[0]}")
        return Recorded([deliver(written, out)], notes=[f"recorded with {tool}"], details={"command": list(command)})


def _tool(command: list[str]) -> None:
    if returned := _run(command, dict(os.environ)):
        raise UserError(f"{command[0]} ended with status {returned}")
