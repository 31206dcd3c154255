"""The inside of a jail: confine this process, then run a program as its child. `python -m atrex.agents.jail.enter FD`.

The order comes over the socket FD, in JSON; what holds goes back, with the listener of the jail's network, before the
program starts. The first process of the process namespace stays between: when it ends, the kernel ends whatever the
program has left behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

from atrex.agents.jail import network
from atrex.evaluate.confine import Ground, enter, grants, privileges
from atrex.evaluate.confine import Terms as Confined
from atrex.evaluate.confine.kernel import mount, prctl, unshare
from atrex.evaluate.confine.limits import Limits
from atrex.evaluate.confine.namespaces import Enclosure, enclose
from atrex.hardware.sandbox import CLONE_NEWPID

_PR_SET_PDEATHSIG = 1
_NO_SUID_DEV_EXEC = 2 | 4 | 8
_SHARED_MEMORY = 256 << 20


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    order = json.loads(_line(control))
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["supervisor"]:
        raise SystemExit(1)
    enclosure = enclose(order["root"], order["kept"], _SHARED_MEMORY)
    if unshare(CLONE_NEWPID):
        child = os.fork()
        if child:
            control.close()
            _end_like(child)
        own_processes = True
    else:
        own_processes = False
    _inside(control, order, enclosure, own_processes)


def _inside(control: socket.socket, order: dict[str, Any], enclosure: Enclosure, own_processes: bool) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    hides_processes = own_processes and _own_proc()
    way_out = _way_out(enclosure) if order["network"] else None
    local = tuple(order["local_ports"]) if enclosure.network else ()
    if local and not way_out:
        network.raise_loopback()
    parent = 0 if own_processes else os.getppid()
    ground = Ground(
        zygote=parent,
        judge=parent,
        enclosure=enclosure,
        roots=tuple(root for root in grants.read_roots() if root != str(grants.PACKAGE)),
    )
    terms = Confined(
        device=order["device"],
        folders=tuple(order["folders"]),
        limits=Limits(**order["limits"]),
        hidden=(str(grants.PACKAGE), *order["hidden"]),
        readable=tuple(order["readable"]),
        ports=((network.PORT,) if way_out else ()) + local,
        listens=local,
        capabilities=tuple(order["capabilities"]),
        unix_sockets=order["unix_sockets"],
    )
    held = enter(ground, terms) | {
        "processes": "own namespace" if hides_processes else "shared",
        "kept": [each for each in order["capabilities"] if privileges.capabilities() >> each & 1],
    }
    answer = json.dumps({"held": held}).encode() + b"\n"
    socket.send_fds(control, [answer], [way_out.fileno()] if way_out else [])
    control.close()
    if way_out:
        way_out.close()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(order["cwd"])
            os.execve(order["argv"][0], order["argv"], order["env"])
        except OSError as error:
            os.write(2, f"cannot start {order['argv'][0]}: {error.strerror}\n".encode())
            os._exit(127)
    _end_like(child)


def _way_out(enclosure: Enclosure) -> socket.socket | None:
    if not enclosure.network:
        return None
    network.raise_loopback()
    return network.listener()


def _own_proc() -> bool:
    try:
        mount("proc", "/proc", "proc", _NO_SUID_DEV_EXEC)
    except OSError:
        return False
    return True


def _end_like(child: int) -> None:
    """Wait for a child, reaping what else ends here, and end as it did: 128 and the signal's number for a signal."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _line(control: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = control.recv(1 << 16)
        if not more:
            raise SystemExit(1)
        data += more
    return data


if __name__ == "__main__":
    main()
