"""The judge's handles on the zygote and on a worker: start, ask with a deadline, kill, and say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from atrex.errors import UserError
from atrex.evaluate.channel import Channel, ChannelClosed, ChannelTimeout

_PASSED_ON = (
    "PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "ROCM_PATH",
    "HIP_VISIBLE_DEVICES", "CC", "CXX", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
)  # fmt: skip
_LOG_TAIL = 64 << 10


class WorkerDied(Exception):
    """The worker ended without an answer. `how` is a phrase for a person, `oom` whether memory ended it."""

    def __init__(self, how: str, oom: bool = False):
        super().__init__(how)
        self.how = how
        self.oom = oom


class WorkerTimeout(Exception):
    """The worker did not answer within the limit and was killed."""


def describe_status(status: int | None) -> str:
    """A phrase for a raw wait status."""
    if status is None:
        return "ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with status {os.WEXITSTATUS(status)} before it answered"


class Zygote:
    """The process that workers are forked from. `versions` says what it has imported.

    It owns the scratch folder, which `close` removes. Starting one imports nothing heavy here.
    """

    def __init__(self) -> None:
        self.threads = len(os.sched_getaffinity(0))
        self.scratch = Path(tempfile.mkdtemp(prefix="atrex-"))
        mine, theirs = socket.socketpair()
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env |= {
            "HOME": str(self.scratch),
            "TMPDIR": str(self.scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",  # an idle BLAS pool would be a thread in the zygote
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_PROC_BIND": "true",
            "ATREX_SYS_PATH": json.dumps([p for p in sys.path if p]),
        }
        package_root = str(Path(__file__).resolve().parents[2])
        env["PYTHONPATH"] = package_root
        self._process = subprocess.Popen(
            [sys.executable, "-m", "atrex.evaluate.zygote", str(theirs.fileno())],
            env=env,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=self.scratch,
            start_new_session=True,
        )
        theirs.close()
        self._channel = Channel(mine)
        self._exits: dict[int, int] = {}
        self.versions: dict[str, str] | None = None

    def wait_ready(self, timeout: float = 120) -> None:
        """Wait for the imports. Raises UserError if the zygote does not come up."""
        if self.versions is not None:
            return
        try:
            message, _ = self._channel.receive(timeout)
        except (ChannelClosed, ChannelTimeout):
            raise UserError("the worker zygote did not start: `python -c 'import torch'` must work here") from None
        if message["threads"] != 1:
            raise UserError(f"the worker zygote has {message['threads']} threads after its imports; 1 expected")
        self.versions = message["ready"]

    def spawn(self, spec: dict[str, Any], memory_limit: int) -> Worker:
        """Fork a worker. `spec` is what `atrex.evaluate.worker.main` gets."""
        self.wait_ready()
        mine, theirs = socket.socketpair()
        log_read, log_write = os.pipe()
        self._channel.send(spec, [theirs.fileno(), log_write])
        theirs.close()
        os.close(log_write)
        while True:
            message, _ = self._channel.receive(30)
            if "pid" in message:
                return Worker(self, message["pid"], Channel(mine), log_read, memory_limit)
            self._exits[message["exit"]] = message["status"]

    def exit_status(self, pid: int, timeout: float = 5.0) -> int | None:
        """The raw wait status of a worker that has ended, or None if it is not known in time."""
        deadline = time.monotonic() + timeout
        while pid not in self._exits:
            try:
                message, _ = self._channel.receive(max(0.0, deadline - time.monotonic()))
            except (ChannelClosed, ChannelTimeout):
                return None
            if "exit" in message:
                self._exits[message["exit"]] = message["status"]
        return self._exits.pop(pid)

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass
class _Memory:
    limit: int
    over: int = 0


class Worker:
    """One forked worker. It leads its own process group; `kill` ends the whole group."""

    def __init__(self, zygote: Zygote, pid: int, channel: Channel, log_fd: int, memory_limit: int):
        self.pid = pid
        self.alive = True
        self._zygote = zygote
        self._channel = channel
        self._memory = _Memory(memory_limit)
        self._log = bytearray()
        self._ready = False
        self._reader = threading.Thread(target=self._drain, args=(log_fd,), daemon=True)
        self._reader.start()

    def _drain(self, fd: int) -> None:
        # Output is read as it comes, so that a talkative candidate neither blocks nor fills memory or disk.
        while data := os.read(fd, 1 << 16):
            self._log += data
            if len(self._log) > 2 * _LOG_TAIL:
                del self._log[:-_LOG_TAIL]
        os.close(fd)

    @property
    def log(self) -> str:
        """The last 64 KiB of what the candidate printed."""
        return bytes(self._log[-_LOG_TAIL:]).decode(errors="replace")

    def _watch(self) -> None:
        total = 0
        with contextlib.suppress(psutil.Error):
            me = psutil.Process(self.pid)
            for process in [me, *me.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    memory = process.memory_info()
                    total += memory.rss - getattr(memory, "shared", 0)
        if total > self._memory.limit:
            self._memory.over = total
            self.kill()

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the worker has started its device. Raises WorkerTimeout or WorkerDied."""
        if not self._ready:
            self._receive(timeout)
            self._ready = True

    def ask(self, message: dict[str, Any], timeout: float, fds: list[int] | None = None) -> dict[str, Any]:
        """Send and wait for the answer. Raises WorkerTimeout (the worker is killed) or WorkerDied."""
        try:
            self._channel.send(message, fds)
        except ChannelClosed as error:
            raise self._death(str(error)) from None
        return self._receive(timeout)

    def _ask_spinning(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        try:
            self._channel.send(message)
            self._channel.await_frame(timeout)
        except ChannelTimeout:
            self.kill()
            raise WorkerTimeout from None
        except ChannelClosed as error:
            raise self._death(str(error)) from None
        return self._receive(timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            return self._channel.receive(timeout, tick=self._watch)[0]
        except ChannelTimeout:
            self.kill()
            raise WorkerTimeout from None
        except ChannelClosed as error:
            raise self._death(str(error)) from None

    def ask_timed(self, message: dict[str, Any], timeout: float, spin: bool = False) -> tuple[dict[str, Any], float]:
        """As `ask`, for an order that sends a note when its work has ended: the answer, and microseconds until then.

        With `spin` this process stays awake meanwhile, for the shorter and steadier time; the memory watch rests.
        """
        started = time.perf_counter_ns()
        first = self._ask_spinning(message, timeout) if spin else self.ask(message, timeout)
        took = (time.perf_counter_ns() - started) / 1e3
        return (self._receive(timeout) if "ended" in first else first), took

    def _death(self, why: str) -> WorkerDied:
        if self._memory.over:
            used, limit = self._memory.over >> 20, self._memory.limit >> 20
            return WorkerDied(f"used {used} MiB of memory, over its limit of {limit} MiB", oom=True)
        status = self._zygote.exit_status(self.pid, timeout=1.0)
        self.kill()
        if status is None:
            return WorkerDied(f"broke off its channel to the judge ({why})")
        oom = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return WorkerDied(describe_status(status) + (" (out of memory?)" if oom else ""), oom)

    def kill(self) -> None:
        """SIGKILL the process group. Safe to call again."""
        if self.alive:
            self.alive = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the worker and give back its descriptors. The zygote reaps it in its own time."""
        self.kill()
        self._channel.close()
        self._reader.join(0.05)
