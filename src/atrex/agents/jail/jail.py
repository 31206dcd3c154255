"""The supervisor's handle on a jail: start a program in it, read what it prints, watch what it takes, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atrex.agents.jail import network
from atrex.agents.jail.ask import Ask, parse_host
from atrex.agents.jail.proxy import Proxy
from atrex.agents.jail.service import Service
from atrex.evaluate.confine import processes
from atrex.evaluate.confine.limits import Limits
from atrex.evaluate.confine.watch import PERIOD, Watch

_READY_WITHIN = 30.0
_LINE = 8 << 20  # bytes of one line of output
# What every program needs and none can learn anything from.
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "TERM")


class JailError(Exception):
    """The jail could not be made, or what ran in it took more than it may. One line."""


class NoJail(JailError):
    """It cannot be made on this machine, whatever is to run in it."""


@dataclass(frozen=True)
class Terms:
    """What a program in a jail may use.

    `readable` are its own files beyond system and Python packages, `hosts` ("host" or "host:port") what it may reach,
    none without network; `service` is a model's that it speaks to without knowing the key; `device` "cpu" or "cuda".
    `hidden` are folders below readable ones that stay shut. `local_ports` are TCP ports where its processes may speak
    to each other, in its own empty network. `capabilities` are numbers of those that they keep.
    """

    readable: Sequence[str] = ()
    hidden: Sequence[str] = ()
    hosts: Sequence[str] = ()
    service: Service | None = None
    device: str = "cpu"
    limits: Limits | None = None
    unix_sockets: bool = False
    local_ports: Sequence[int] = ()
    capabilities: Sequence[int] = ()
    path: Sequence[str] = field(default=())  # folders of programs, before the system's


class Jail:
    """Runs programs, one after the other, that see `root/workspace` and `root/home` and write nowhere else.

    A context manager; what it leaves of a program when it ends is killed.
    """

    def __init__(self, root: Path, terms: Terms):
        self.root, self.terms = root.resolve(), terms
        self.workspace, self.home = self.root / "workspace", self.root / "home"
        for folder in (self.workspace, self.home, self.home / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        self.limits = terms.limits or Limits.of_this_machine(str(self.root))
        self.held: dict[str, Any] = {}
        self.asked: list[Ask] = []  # what programs asked of the network
        self.excess: str | None = None
        self._hosts = [parse_host(host) for host in terms.hosts]
        self._network = bool(self._hosts or terms.service)
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._proxy: Proxy | None = None
        self._watching: threading.Thread | None = None

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- starting --------------------------------------------------------------------------------------------------

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        talk: bool = False,
    ) -> None:
        """Start a program in the workspace, with `stdin` as its input or, with `talk`, what `send` gives it.

        Raises NoJail when it cannot be made, JailError when it was shut by `kill` or a program runs in it already.
        """
        if self._killed:
            raise JailError("the jail was shut")
        if self._process is not None:
            raise JailError("a program runs in this jail already")
        self.excess = None
        ours, theirs = socket.socketpair()
        with ours:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "atrex.agents.jail.enter", str(theirs.fileno())],
                stdin=subprocess.PIPE if talk or stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=_environment_of_the_door(),
                start_new_session=True,
            )
            theirs.close()
            try:
                listener = self._agree(ours, argv, env or {})
                if self._killed:  # while it was being made
                    raise JailError("the jail was shut")
            except BaseException:
                self.stop()
                raise
        if listener is not None:
            self._proxy = Proxy(listener, self._hosts, self.asked.append, self.terms.service)
        folders = [str(self.workspace), str(self.home)]  # which are opened now: a short program may be gone soon
        watch = Watch(self._process.pid, self.limits, folders, private_shared_memory=False)
        self._watching = threading.Thread(target=self._watch, args=(self._process, watch), daemon=True)
        self._watching.start()
        if talk:
            os.set_blocking(self._process.stdin.fileno(), False)
        elif stdin is not None:
            threading.Thread(target=_feed, args=(self._process, stdin), daemon=True).start()

    def _agree(self, control: socket.socket, argv: Sequence[str], env: Mapping[str, str]) -> socket.socket | None:
        order = {
            "supervisor": os.getpid(),
            "root": str(self.root),
            "kept": [sys.prefix, sys.base_prefix, *self.terms.readable, *self.terms.path],
            "network": self._network,
            "device": self.terms.device,
            "folders": [str(self.workspace), str(self.home)],
            "limits": asdict(self.limits),
            "hidden": list(self.terms.hidden),
            "readable": [*self.terms.readable, *self.terms.path],
            "unix_sockets": self.terms.unix_sockets,
            "local_ports": list(self.terms.local_ports),
            "capabilities": list(self.terms.capabilities),
            "cwd": str(self.workspace),
            "argv": list(argv),
            "env": self._environment() | dict(env),
        }
        control.sendall(json.dumps(order).encode() + b"\n")
        control.settimeout(_READY_WITHIN)
        try:
            said, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
        except OSError:
            said, fds = b"", []
        if not said:
            self._process.kill()
            why = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            if self._killed:
                raise JailError("the jail was shut")
            raise NoJail(f"the jail did not come up: {why[-1] if why else 'no answer'}")
        self.held = json.loads(said)["held"]
        if self.terms.local_ports and "network" in self.held["unconfined"]:
            raise NoJail("no network namespace can be made here, so no port can be its own; see atrex doctor")
        if self._network and not fds:
            raise NoJail("no network namespace can be made here, so hosts cannot be let through; see atrex doctor")
        return socket.socket(fileno=fds[0]) if fds else None

    def _environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        folders = [*self.terms.path, str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        home = str(self.home)
        env = passed | {"PATH": os.pathsep.join(folders), "HOME": home, "TMPDIR": f"{home}/tmp", "USER": "agent"}
        if self._network:
            proxy = f"http://127.0.0.1:{network.PORT}"
            env |= {name: proxy for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")}
        if self.terms.service is not None:
            env |= {name: "127.0.0.1" for name in ("NO_PROXY", "no_proxy")}
        return env

    # -- running ---------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether a program runs."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def pids(self) -> list[int]:
        """The processes of what runs, as this machine numbers them, its door first; none when nothing runs."""
        return processes.descendants([self._process.pid]) if self.alive else []

    def send(self, data: bytes, deadline: float) -> None:
        """Write to a program that was started to `talk`.

        Raises TimeoutError at `deadline` (time.monotonic()), BrokenPipeError when it no longer listens.
        """
        fd = self._process.stdin.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while data:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if poll.poll(left * 1e3):
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(fd, data) :]

    def lines(self, deadline: float) -> Iterator[tuple[str, str]]:
        """("out" | "err", line) as the program prints them, until it ends. Raises TimeoutError at `deadline`.

        The deadline is one of time.monotonic(). Bytes that are not UTF-8 are replaced, endless lines cut.
        """
        process = self._process
        streams = {process.stdout.fileno(): "out", process.stderr.fileno(): "err"}
        pieces = dict.fromkeys(streams, b"")
        poll = select.poll()
        for fd in streams:
            poll.register(fd, select.POLLIN | select.POLLHUP)
        while streams:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for fd, _ in poll.poll(min(left, 1.0) * 1e3):
                data = os.read(fd, 1 << 16)
                *whole, pieces[fd] = (pieces[fd] + data).split(b"\n")
                if not data:
                    poll.unregister(fd)
                    whole, name = ([pieces[fd]] if pieces[fd] else []), streams.pop(fd)
                else:
                    name = streams[fd]
                for line in whole:
                    yield name, line.decode(errors="replace")
                if len(pieces[fd]) > _LINE:
                    yield name, pieces[fd].decode(errors="replace")
                    pieces[fd] = b""

    def wait(self, patience: float = 10.0) -> int:
        """The exit status, 128 and more for a signal. Ends a program that does not end within `patience` seconds."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.stop()
            return 128 + signal.SIGKILL

    def kill(self) -> None:
        """End what runs, from any thread, and let nothing more start: whoever reads `lines` sees the program end."""
        self._killed = True
        process = self._process
        if process is not None and process.poll() is None:
            _end(process.pid)

    def stop(self) -> None:
        """End the program with everything that it has started; nothing happens when none runs."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                _end(process.pid)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError, AttributeError):
                    stream.close()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    def _watch(self, process: subprocess.Popen[bytes], watch: Watch) -> None:
        try:
            while process.poll() is None:
                if excess := watch.look():
                    self.excess = excess.text
                    _end(process.pid)
                    return
                time.sleep(PERIOD)
        finally:
            watch.close()


def _end(door: int) -> None:
    """Kill the first process of the jail: the kernel then kills its whole namespace, however fast that forks."""
    for pid in processes.children(door):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    processes.end([door])


def _environment_of_the_door() -> dict[str, str]:
    """For the process that builds the jail; nothing of it reaches the program."""
    import atrex

    return {"PATH": os.defpath, "PYTHONPATH": str(Path(atrex.__file__).resolve().parent.parent)}


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(data)
        process.stdin.close()
