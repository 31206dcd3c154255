"""The compile gate over candidates and shapes: a process of its own per candidate, ended when it takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import atrex.dsls
from atrex.compile.child import Task
from atrex.compile.outcome import Outcome
from atrex.dsls.offline import Target
from atrex.errors import UserError

_LOG_TAIL = 4 << 10
_START = 120.0  # seconds for imports, before a shape is begun
_PASSED_ON = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "CC", "CXX", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One candidate for one target. `name` is how the candidate is called in outcomes, `folder` is the problem's."""

    name: str
    source: str
    file_name: str
    operator: str
    shapes: list[str]
    dsl: str
    target: Target
    folder: Path


def check(dsl: str, target: Target) -> None:
    """Raise UserError when a DSL has no code for a target."""
    if not atrex.dsls.get(dsl).compiles_for(target):
        expected = ", ".join(f"{p}*" if p != "cpu" else p for p in atrex.dsls.get(dsl).targets)
        raise UserError(f"DSL {dsl} does not compile for {target.name}: expected one of {expected}")


def compile_candidate(
    job: Job,
    limit: float,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    held: Callable[[dict[str, Any]], None] = lambda held: None,
) -> list[Outcome]:
    """An outcome for every shape of a job, in order, each told as it is there; `held` gets what confines a process.

    `limit` is in seconds, for one shape. A shape that ends its process (a compiler that crashes) fails, and the next
    one gets another process. Raises UserError when the DSL has no code for the target, or no process can be started.
    """
    check(job.dsl, job.target)
    lacks = atrex.dsls.get(job.dsl).lacks(job.target)
    waiting = list(job.shapes)
    outcomes: list[Outcome] = []

    def add(shape: str, status: Any, **about: Any) -> None:
        made = Outcome(job.name, job.operator, shape, job.dsl, job.target.name, status, **about)
        outcomes.append(made)
        tell(made)

    if lacks:
        for shape in waiting:
            add(shape, "undetermined", reason=lacks)
        return outcomes
    with tempfile.TemporaryDirectory(prefix="atrex-compile-") as folder:
        while waiting:
            begun, imported, why = None, False, ""
            for message in _answers(job, waiting, Path(folder), limit):
                if "held" in message:
                    held(message["held"])
                elif "begun" in message:
                    begun = message["begun"]
                elif "imported" in message:
                    imported = True
                elif "ended" in message:
                    shape, begun = message.pop("ended"), None
                    waiting.remove(shape)
                    add(shape, message.pop("status"), **message)
                else:
                    why = message["died"]
            if begun is not None:
                for shape in [begun] if imported else waiting:  # what ends its import ends it for every shape
                    add(shape, "failed", reason=why)
                waiting = [shape for shape in waiting if imported and shape != begun]
            elif waiting:  # before it saw the candidate
                raise UserError(f"no compiling process could be started: {why}")
    return outcomes


def _answers(job: Job, shapes: list[str], folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """Messages of one child; the last is `died` unless all shapes ended."""
    scratch = Path(tempfile.mkdtemp(dir=folder))
    source = scratch / job.file_name
    source.write_text(job.source)
    task = Task(str(source), shapes, job.dsl, job.target.name, str(job.folder), str(scratch))
    with tempfile.TemporaryFile(dir=folder) as log, _child(scratch, log) as (child, answers):
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
            child.stdin.close()
        left = len(shapes)
        for message in _lines(answers, limit):
            left -= "ended" in message
            yield message
            if "died" in message:
                return
        if left:
            yield {"died": _how(child.wait(timeout=10), log)}
    shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _child(scratch: Path, log: Any) -> Iterator[tuple[subprocess.Popen, int]]:
    """A child and the end of the pipe on which it answers; both are gone afterwards."""
    read_end, write_end = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "atrex.compile.child", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=_environment(scratch),
            pass_fds=[write_end],
        )
        os.close(write_end)
        try:
            yield child, read_end
        finally:
            _kill(child)
    finally:
        os.close(read_end)


def _lines(fd: int, limit: float) -> Iterator[dict[str, Any]]:
    """JSON lines until the other side closes; `died` when none comes for `limit` seconds, or no shape is begun."""
    pending = b""
    deadline, why = time.monotonic() + _START, f"it did not start within {_START:g} s"
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            yield {"died": why}
            return
        data = os.read(fd, 1 << 16)
        if not data:
            return
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            message = json.loads(line)
            yield message
            if "held" not in message:
                deadline, why = time.monotonic() + limit, f"did not compile within {limit:g} s"


def _how(status: int, log: Any) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_TAIL))
    said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    last = f": {said[-1][:300]}" if said else ""
    if status < 0:
        return f"the compiling process was killed by {signal.Signals(-status).name}{last}"
    return f"the compiling process exited with status {status}{last}"


def _kill(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(child.pid) == child.pid:  # it is confined, in a session of its own with its compilers
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _environment(scratch: Path) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    package_root = str(Path(atrex.__file__).resolve().parents[1])
    return passed | {
        "HOME": str(scratch),
        "PYTHONPATH": os.pathsep.join([package_root, *(p for p in sys.path if p and p != package_root)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
