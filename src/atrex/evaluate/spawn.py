"""The judge's handles on the zygote and on a worker: start, ask with a deadline, kill, and say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.evaluate.channel import Channel, ChannelClosed, ChannelTimeout
from atrex.evaluate.confine import bubblewrap, grants, worker_uid
from atrex.evaluate.confine.homes import Folders, Homes
from atrex.evaluate.confine.limits import Limits
from atrex.hardware.sandbox import landlock_abi

_PASSED_ON = (
    "PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "ROCM_PATH",
    "HIP_VISIBLE_DEVICES", "CC", "CXX", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
)  # fmt: skip
_LOG_TAIL = 64 << 10
_FLOOD_PAUSE = 0.02  # seconds after 64 KiB: 3 MiB/s
_EXITS_KEPT = 100
_LAST_WORDS = 8.0  # seconds for a zygote to end what its workers have started


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

    It owns the folders of its workers (`homes`), which `close` removes. `hidden` are files and folders that no worker
    may read even where it reads what is around them; `limits` hold for each worker. `without` leaves mechanisms of the
    confinement out (see `atrex.evaluate.confine.Ground`). Starting one imports nothing heavy here.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.threads = len(os.sched_getaffinity(0))
        self.homes = Homes()
        self.limits = Limits.of_this_machine(str(self.homes.root))
        self.hidden: set[str] = set()
        self._uid: int | None = None
        mine, theirs = socket.socketpair()
        scratch = str(self.homes.root)
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env |= {
            "HOME": scratch,
            "TMPDIR": scratch,
            "USER": "atrex",  # a worker's user has no name of its own
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",  # an idle BLAS pool would be a thread in the zygote
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_PROC_BIND": "true",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        container = self._container(set(without))
        env["ATREX_ZYGOTE"] = json.dumps(
            {
                "path": [p for p in sys.path if p],
                "judge": os.getpid(),
                "scratch": scratch,
                "shared": str(self.homes.shared),
                "bubblewrap": container is not None,
                "without": sorted(without),
            }
        )
        self._process = subprocess.Popen(
            [*(container or ()), sys.executable, "-m", "atrex.evaluate.zygote", str(theirs.fileno())],
            env=env,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=scratch,
            start_new_session=True,
        )
        theirs.close()
        self._channel = Channel(mine)
        self._exits: dict[int, dict[str, Any]] = {}
        self.versions: dict[str, str] | None = None

    def _container(self, without: set[str]) -> list[str] | None:
        if "bubblewrap" in without or (landlock_abi() and "landlock" not in without):
            return None
        return bubblewrap.prefix(str(self.homes.root), grants.holes())

    def hide(self, *paths: str | Path) -> None:
        """Keep files and folders from workers that are forked from now on."""
        self.hidden |= {os.path.realpath(path) for path in paths}

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
        self.versions, self._uid = message["ready"], message["uid"]

    def spawn(self, spec: dict[str, Any]) -> Worker:
        """Fork a worker with folders of its own. `spec` is what `atrex.evaluate.worker.main` gets beside those."""
        self.wait_ready()
        folders = self.homes.new(worker_uid(spec["device"].split(":")[0], self._uid))
        spec = spec | {
            "scratch": str(folders.work),
            "home": str(folders.home),
            "shared": str(self.homes.shared),
            "limits": asdict(self.limits),
            "hidden": sorted(self.hidden),
        }
        mine, theirs = socket.socketpair()
        log_read, log_write = os.pipe()
        self._channel.send(spec, [theirs.fileno(), log_write])
        theirs.close()
        os.close(log_write)
        while True:
            message, _ = self._channel.receive(30)
            if "pid" in message:
                self._exits.pop(message["pid"], None)  # of an earlier worker that had the same number
                return Worker(self, message["pid"], Channel(mine), log_read, folders, self.limits.output)
            self._note_exit(message)

    def _note_exit(self, message: dict[str, Any]) -> None:
        self._exits[message["exit"]] = message
        while len(self._exits) > _EXITS_KEPT:  # most workers are ended by the judge, and nobody asks how
            del self._exits[next(iter(self._exits))]

    @property
    def alive(self) -> bool:
        """Whether its process lives. What a worker did while it died says nothing about the worker's candidate."""
        return self._process.poll() is None

    def how_it_ended(self, pid: int, timeout: float = 5.0) -> dict[str, Any]:
        """Of a worker that has ended `status`, its raw wait status, and `excess`, if it was over a limit.

        Empty if that is not known in time.
        """
        deadline = time.monotonic() + timeout
        while pid not in self._exits:
            try:
                message, _ = self._channel.receive(max(0.0, deadline - time.monotonic()))
            except (ChannelClosed, ChannelTimeout):
                return {}
            if "exit" in message:
                self._note_exit(message)
        return self._exits.pop(pid)

    def close(self) -> None:
        """End it with all its workers and what they have started; it does so itself once its channel is closed."""
        self._channel.close()
        if self.versions is not None:  # before that it has no worker
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.homes.close()


class Worker:
    """One forked worker, its folders, and `held`: what confines it, as it said before it knew its candidate.

    It leads its own process group; `kill` ends the group, and the zygote what has left the group.
    """

    def __init__(
        self, zygote: Zygote, pid: int, channel: Channel, log_fd: int, folders: Folders, full_speed_output: int
    ):
        self.pid = pid
        self.alive = True
        self.folders = folders
        self.held: dict[str, Any] = {}
        self._zygote = zygote
        self._channel = channel
        self._full_speed_output = full_speed_output
        self._log = bytearray()
        self._closed = False
        self._reader = threading.Thread(target=self._drain, args=(log_fd,), daemon=True)
        self._reader.start()

    def _drain(self, fd: int) -> None:
        # Output is read as it comes, so that a talkative candidate neither blocks nor fills memory or disk; a flood is
        # read slowly, so that it costs the candidate time and not the judge.
        read = 0
        while data := os.read(fd, 1 << 16):
            read += len(data)
            self._log += data
            if len(self._log) > 2 * _LOG_TAIL:
                del self._log[:-_LOG_TAIL]
            if read > self._full_speed_output:
                time.sleep(_FLOOD_PAUSE)
        os.close(fd)

    @property
    def log(self) -> str:
        """The last 64 KiB of what the candidate printed."""
        return bytes(self._log[-_LOG_TAIL:]).decode(errors="replace")

    def start(self, timeout: float = 60.0) -> None:
        """Wait until the worker is up, and have it start its device. Raises WorkerTimeout or WorkerDied."""
        try:
            self.held = self._receive(timeout)["ready"]
            answer = self.ask({"op": "start"}, timeout)
        except WorkerDied as death:
            self._reader.join(1.0)
            said = self.log.strip().splitlines()
            raise WorkerDied(f"{death.how}{f' ({said[-1][:300]})' if said else ''}", death.oom) from None
        if "raised" in answer:
            raise WorkerDied(f"could not start its device ({answer['raised']}: {answer['message'][:300]})")

    def place(self, key: str, name: str, source: str) -> tuple[Path, Path]:
        """Give the worker its candidate: (the source file, the cache that workers before it with this `key` left)."""
        alone = not str(self.held["files"]).startswith("Landlock")
        return self._zygote.homes.place(self.folders, key, name, source, alone)

    def ask(self, message: dict[str, Any], timeout: float, fds: list[int] | None = None) -> dict[str, Any]:
        """Send and wait for the answer. Raises WorkerTimeout (the worker is killed) or WorkerDied."""
        self._send(message, fds)
        return self._receive(timeout)

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            self._channel.send(message, fds)
        except ChannelClosed as error:
            raise self._death(str(error)) from None

    def ask_aside(self, message: dict[str, Any], timeout: float, aside: Callable[[bool], None]) -> dict[str, Any]:
        """As `ask`, for an order during which the worker may step aside from the device while it compiles.

        `aside(True)` is called when it does, `aside(False)` before it is told to go on; the time that this takes does
        not count, up to as much again as `timeout`.
        """
        self._send(message | {"aside": True})
        deadline, grace = time.monotonic() + timeout, timeout
        while True:
            if time.monotonic() > deadline:  # a worker that always has something to say
                self.kill()
                raise WorkerTimeout
            answer = self._receive(max(deadline - time.monotonic(), 0.001))
            if set(answer) != {"aside"}:
                return answer
            asked = time.monotonic()
            aside(answer["aside"] is True)
            waited = min(time.monotonic() - asked, grace)
            deadline, grace = deadline + waited, grace - waited
            if answer["aside"] is not True:
                self._send({"go": True})

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
            return self._channel.receive(timeout)[0]
        except ChannelTimeout:
            self.kill()
            raise WorkerTimeout from None
        except ChannelClosed as error:
            raise self._death(str(error)) from None

    def ask_timed(
        self, message: dict[str, Any], timeout: float, spin: bool = False, ended: Callable[[], None] = lambda: None
    ) -> tuple[dict[str, Any], float]:
        """As `ask`, for an order that sends a note when its work has ended: the answer, and microseconds until then.

        `ended` is called as soon as the note is there. With `spin` this process stays awake meanwhile, for the shorter
        and steadier time.
        """
        started = time.perf_counter_ns()
        first = self._ask_spinning(message, timeout) if spin else self.ask(message, timeout)
        took = (time.perf_counter_ns() - started) / 1e3
        ended()
        return (self._receive(timeout) if "ended" in first else first), took

    def _death(self, why: str) -> WorkerDied:
        end = self._zygote.how_it_ended(self.pid, timeout=1.0)
        self.kill()
        if not end:
            return WorkerDied(f"broke off its channel to the judge ({why})")
        if end["excess"]:
            return WorkerDied(end["excess"]["text"], oom=end["excess"]["what"] == "memory")
        oom = os.WIFSIGNALED(end["status"]) and os.WTERMSIG(end["status"]) == signal.SIGKILL
        return WorkerDied(describe_status(end["status"]) + (" (out of memory?)" if oom else ""), oom)

    def kill(self) -> None:
        """SIGKILL the process group. Safe to call again."""
        if self.alive:
            self.alive = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the worker and give back its descriptors and folders. The zygote reaps it in its own time.

        Safe to call again.
        """
        self.kill()
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        self._reader.join(0.05)
        self._zygote.homes.release(self.folders)
