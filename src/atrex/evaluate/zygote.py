"""The zygote: imports torch (and triton where it is installed) once, then forks a worker for every unit.

It runs with a scrubbed environment and holds no device, no secret and no thread, so that a fork of it is a clean and
quick start. It also watches its workers' limits, and kills what they leave behind. Started as
``python -m atrex.evaluate.zygote FD`` by `atrex.evaluate.spawn`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atrex.evaluate import confine
from atrex.evaluate.channel import Channel, ChannelClosed
from atrex.evaluate.confine import grants, privileges, processes
from atrex.evaluate.confine.homes import remove
from atrex.evaluate.confine.kernel import libc, prctl
from atrex.evaluate.confine.limits import Limits
from atrex.evaluate.confine.namespaces import SHARED_MEMORY, Enclosure, enclose
from atrex.evaluate.confine.watch import PERIOD, Excess, Watch

_PR_SET_CHILD_SUBREAPER = 36
_SHARED_MEMORY_BYTES = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGEST_ON_HEAP = 32 << 20  # the most that glibc takes
_KEPT_HEAP = 1 << 30
# What workers import only when they need it: once confined, as another user, they may not be able to.
_NEEDED_LATER = (
    "atrex.evaluate.worker", "atrex.evaluate.timing.host", "atrex.evaluate.timing.cuda", "atrex.profiling.collector",
    "atrex.profiling.cupti", "atrex.profiling.rocprofiler",
)  # fmt: skip


def _preload() -> dict[str, str]:
    import torch
    import torch.utils._python_dispatch  # noqa: F401

    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    try:
        import triton
        import triton.language  # noqa: F401

        versions["triton"] = triton.__version__
    except ImportError:
        pass
    import atrex.dsls

    for name in _NEEDED_LATER:
        importlib.import_module(name)
    for name in atrex.dsls.names():
        atrex.dsls.get(name).preload()

    return versions


def _keep_heap() -> None:
    """Let malloc keep what is freed (glibc; elsewhere nothing is done).

    Otherwise an output lies in pages that are new to the process whenever the one before it is still held, and the
    page faults cost more than the kernel: the same call is then slower in a batch than alone.
    """
    with contextlib.suppress(AttributeError):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_HEAP)


@dataclass
class _Worker:
    watch: Watch
    excess: Excess | None = None


class Server:
    """Answers the judge's orders until it is gone, and ends with everything that it has started."""

    def __init__(self, control: Channel, ground: confine.Ground):
        self.control, self.ground = control, ground
        self.workers: dict[int, _Worker] = {}
        self._looked = 0.0
        self._wake, wake_end = os.pipe()
        for fd in (self._wake, wake_end):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's to handle
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end)  # a dead child ends the wait below

    def serve(self) -> None:
        """Answer `spawn` with a pid and report each worker's end as ``{"exit": pid, "status": raw wait status}``."""
        while True:
            ready, _, _ = select.select([self.control, self._wake], [], [], PERIOD if self.workers else None)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            try:
                if self.control in ready:
                    message, fds = self.control.receive(max_fds=2)
                    self.control.send({"pid": self._fork(message, fds)})
                if time.monotonic() - self._looked >= PERIOD:
                    self._look()
                    self._looked = time.monotonic()
                self._reap()
            except ChannelClosed:
                processes.end(self.workers)
                processes.end_adopted(())
                return

    def _fork(self, spec: dict[str, Any], fds: list[int]) -> int:
        sys.stdout.flush()
        limits = Limits(**spec["limits"])
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._child(fds, spec, limits)
                code = 0
            except BaseException as error:  # noqa: BLE001 - the child must never return into the zygote's loop
                print(f"worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
        private = SHARED_MEMORY in self.ground.enclosure.emptied
        self.workers[pid] = _Worker(Watch(pid, limits, [spec["scratch"], spec["home"]], private))
        return pid

    def _child(self, fds: list[int], spec: dict[str, Any], limits: Limits) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        worker_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        keep = os.dup2(worker_fd, 3)
        os.closerange(4, 65536)
        from atrex.evaluate import worker

        terms = confine.Terms(
            device=spec["device"].split(":")[0],
            folders=(spec["scratch"], spec["home"]),
            limits=limits,
            hidden=tuple(spec["hidden"]),
            readable=(spec["shared"],),
        )
        if SHARED_MEMORY not in self.ground.enclosure.emptied:
            os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # its processes would need semaphores there
        held = confine.enter(self.ground, terms)
        worker.main(Channel(socket.socket(fileno=keep)), spec, held)

    def _look(self) -> None:
        for pid, worker in self.workers.items():
            if worker.excess is None and (excess := worker.watch.look()):
                worker.excess = excess
                processes.end([pid])

    def _reap(self) -> None:
        for pid in list(self.workers):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                worker = self.workers.pop(pid)
                worker.watch.close()
                processes.end_adopted(self.workers)
                self._empty_shared_memory()
                excess = {"what": worker.excess.what, "text": worker.excess.text} if worker.excess else None
                self.control.send({"exit": pid, "status": status, "excess": excess, "at": time.monotonic()})
        # Whoever escapes its worker's tree while that one lives has given up the subreaper that keeps it there.
        processes.end_adopted(self.workers)

    def _empty_shared_memory(self) -> None:
        if SHARED_MEMORY in self.ground.enclosure.emptied:
            for entry in os.scandir(SHARED_MEMORY):
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        remove(Path(entry.path))
                    else:
                        os.unlink(entry.path)


def _ground(about: dict[str, Any]) -> confine.Ground:
    """Leave what all workers do without, before anything is imported that could start a thread."""
    without = frozenset(about["without"])
    enclosure = Enclosure(network=about["bubblewrap"], read_only=about["bubblewrap"])
    # What site has put on the path is a folder of packages; what the judge adds may be anyone's project.
    not_packages = {os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    roots = [*grants.read_roots(), *(path for path in sys.path if path not in not_packages)]
    roots += grants.installed_roots(about["path"])
    if not about["bubblewrap"] and "namespaces" not in without:
        enclosure = enclose(about["scratch"], [*roots, *about["path"]], _SHARED_MEMORY_BYTES)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    privileges.show_process(False)
    return confine.Ground(os.getpid(), about["judge"], enclosure, None, tuple(roots), about["bubblewrap"], without)


def main() -> None:
    """Start, report what was imported, and serve until the judge is gone."""
    about = json.loads(os.environ.pop("ATREX_ZYGOTE"))
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    ground = _ground(about)
    sys.path[:] = about["path"]
    versions = _preload()
    _keep_heap()
    uid = None
    if "user" not in ground.without:
        uid = privileges.spare_uid([sys.executable, os.__file__, sys.modules["torch"].__file__, about["shared"]])
    roots = {os.path.realpath(path) for path in (*ground.roots, *grants.imported_roots()) if os.path.exists(path)}
    ground = replace(ground, uid=uid, roots=tuple(sorted(roots)))
    with contextlib.suppress(ChannelClosed):  # the judge has given up already
        control.send({"ready": versions, "threads": len(os.listdir("/proc/self/task")), "uid": uid})
        Server(control, ground).serve()
    os._exit(0)  # nothing here needs torch's tear-down


if __name__ == "__main__":
    main()
