"""The zygote: imports torch (and triton where it is installed) once, then forks a worker for every unit.

It runs with a scrubbed environment and holds no device, no secret and no thread, so that a fork of it is a clean and
quick start. Started as ``python -m atrex.evaluate.zygote FD`` by `atrex.evaluate.spawn`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

from atrex.evaluate.channel import Channel, ChannelClosed, ChannelTimeout


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
    import atrex.evaluate.worker  # noqa: F401

    for name in atrex.dsls.names():
        atrex.dsls.get(name).preload()

    return versions


def _child(fds: list[int], spec: dict, control: int, zygote: int) -> None:
    worker_fd, log_fd = fds
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    keep = os.dup2(worker_fd, 3)
    os.closerange(4, 65536)
    from atrex.evaluate import confine, worker

    held = confine.enter(zygote)
    worker.main(Channel(socket.socket(fileno=keep)), spec, held)


def serve(control: Channel) -> None:
    """Answer `spawn` with a pid and report every child's end as ``{"exit": pid, "status": raw wait status}``."""
    control.send({"ready": _preload(), "threads": len(os.listdir("/proc/self/task"))})
    me = os.getpid()
    children: set[int] = set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's to handle
    while True:
        try:
            message, fds = control.receive(timeout=0.01 if children else None, max_fds=2)
        except ChannelTimeout:
            message = None
        except ChannelClosed:
            return
        if message is not None:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _child(fds, message, control.fileno(), me)
                    code = 0
                except BaseException as error:  # noqa: BLE001 - the child must never return into the zygote's loop
                    print(f"worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            children.add(pid)
            for fd in fds:
                os.close(fd)
            control.send({"pid": pid})
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                control.send({"exit": pid, "status": status, "at": time.monotonic()})


if __name__ == "__main__":
    sys.path[:] = json.loads(os.environ.pop("ATREX_SYS_PATH"))
    serve(Channel(socket.socket(fileno=int(sys.argv[1]))))
