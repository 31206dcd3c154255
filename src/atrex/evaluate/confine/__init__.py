"""What holds a worker: files, network, users, system calls and bounds, each as far as the kernel offers it.

`Ground` is what a zygote and its workers have in common; `enter` confines one worker right after its fork, before any
candidate code. What it returns says what really holds, and goes into every record as `confinement`.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from atrex.evaluate.confine import grants, landlock, limits, privileges, seccomp
from atrex.evaluate.confine.kernel import prctl
from atrex.evaluate.confine.landlock import ALL, READ, WRITE, Ruleset
from atrex.evaluate.confine.limits import Limits
from atrex.evaluate.confine.namespaces import SHARED_MEMORY, Enclosure

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
UNCONFINED = "unconfined"
# A GPU's driver is started inside the confinement. NVIDIA's shares memory only between processes of one user, and it
# makes a Unix socket of its own.
_SAME_USER = ("cuda",)
_UNIX_SOCKETS = ("cuda",)


@dataclass(frozen=True)
class Ground:
    """Of a zygote: its pid and its judge's, what it has left behind, the spare user for workers, what they read.

    `without` leaves mechanisms out, to show what the others do alone: landlock, seccomp, user, namespaces, bubblewrap;
    "landlock:3" stands for an older Landlock.
    """

    zygote: int
    judge: int
    enclosure: Enclosure = Enclosure()
    uid: int | None = None
    roots: tuple[str, ...] = ()
    bubblewrap: bool = False
    without: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Terms:
    """Of one worker: its device type, the folders it writes to, what it must not read although it lies below a root.

    `ports` are TCP ports that it may connect to in its network namespace, `listens` those where it may listen there,
    `unix_sockets` whether it may make such. `capabilities` are numbers of those that it keeps where it has them.
    """

    device: str
    folders: tuple[str, ...]
    limits: Limits
    hidden: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    listens: tuple[int, ...] = ()
    unix_sockets: bool = False
    capabilities: tuple[int, ...] = ()


def worker_uid(device: str, uid: int | None) -> int | None:
    """The user that a worker on a device type runs as, given the spare one: None for the judge's own."""
    return None if device in _SAME_USER else uid


def enter(ground: Ground, terms: Terms) -> dict[str, Any]:
    """Confine the calling process. Raises SystemExit if the zygote is gone already."""
    uid = worker_uid(terms.device, ground.uid)
    unix_sockets = terms.unix_sockets or terms.device in _UNIX_SOCKETS
    os.setsid()
    privileges.show_process(True)  # the zygote is hidden
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what its children leave behind stays in its tree, where it is counted
    limits.enter(terms.limits, uid is not None)
    ruleset = _ruleset(ground, terms)  # while every path can still be opened
    bare = privileges.drop(uid, terms.capabilities)
    dies_with_parent = prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user would have reset it
    if os.getppid() != ground.zygote:
        raise SystemExit(1)
    no_new_privs = prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if ruleset:
        ruleset.restrict()
        if not ruleset.allows_moves:
            landlock.copy_instead_of_moving()
    scoped = ruleset is not None and ruleset.refuses_signals
    apart = scoped or uid is not None
    own_files = uid is None and not ground.enclosure.read_only
    leave = seccomp.Leave(
        unix_sockets=unix_sockets,
        inet_sockets=bool(terms.ports),
        memory_files=uid is None,  # the watch cannot count those of another user without a capability
        signals=apart,
        modes=not own_files,
        truncate=not own_files or (ruleset is not None and ruleset.refuses_truncation),
        protected=tuple(pid for pid in (ground.judge, ground.zygote) if pid and uid is None),
    )
    filtered = "seccomp" not in ground.without and seccomp.install(leave)
    held = {
        "files": _files(ground, ruleset),
        "network": _network(ground, terms, ruleset, filtered),
        "unix_sockets": _unix_sockets(ground, scoped, filtered and not unix_sockets),
        "signals": _signals(scoped, uid, filtered and not leave.signals),
        "file_modes": _file_modes(ground, uid, filtered and not leave.modes),
        "system_calls": "filtered" if filtered else UNCONFINED,
        "capabilities": "none" if bare else UNCONFINED,
        "uid": os.getuid(),
        "own_user": uid is not None,
        "process_group": True,
        "parent_death_signal": dies_with_parent,
        "no_new_privs": no_new_privs,
    }
    return held | {"unconfined": sorted(name for name, value in held.items() if value == UNCONFINED)}


def describe(held: dict[str, Any]) -> str:
    """One line about what `enter` returned."""
    names = ("files", "file_modes", "network", "unix_sockets", "signals", "system_calls", "capabilities")
    parts = [f"{name.replace('_', ' ')}: {held[name]}" for name in names]
    return "; ".join([*parts, f"uid {held['uid']}{' of its own' if held['own_user'] else ''}"])


def warning(held: dict[str, Any]) -> str | None:
    """A line for the terminal where something that should hold candidates does not."""
    if not held["unconfined"]:
        return None
    what = ", ".join(name.replace("_", " ") for name in held["unconfined"])
    return f"warning: candidates are UNCONFINED here ({what}); atrex doctor says what is missing"


def _ruleset(ground: Ground, terms: Terms) -> Ruleset | None:
    if "landlock" in ground.without:
        return None
    older = [int(name.split(":")[1]) for name in ground.without if name.startswith("landlock:")]
    try:
        ruleset = Ruleset(*older)
    except OSError:
        return None
    for path, access in grants.rules(ground.roots, (*grants.holes(), *terms.hidden)):
        ruleset.allow(path, access)
    for path in terms.readable:
        ruleset.allow(path, READ)
    for path in (*grants.DEVICES, *(grants.gpu_nodes() if terms.device != "cpu" else ())):
        ruleset.allow(path, ALL)
    if SHARED_MEMORY in ground.enclosure.emptied:
        ruleset.allow(SHARED_MEMORY, ALL)
    ruleset.allow(f"/proc/{os.getpid()}/task", WRITE)  # threads are named there, and CUDA does not start otherwise
    for path in terms.folders:
        ruleset.allow(path, ALL)
    for port in terms.ports:
        ruleset.allow_connect(port)
    for port in terms.listens:
        ruleset.allow_listen(port)
    return ruleset


def _files(ground: Ground, ruleset: Ruleset | None) -> str:
    if ruleset:
        return f"Landlock {ruleset.abi}"
    return "bubblewrap" if ground.bubblewrap else UNCONFINED


def _file_modes(ground: Ground, uid: int | None, filtered: bool) -> str:
    held = (["read-only mounts"] if ground.enclosure.read_only else []) + (["another user"] if uid is not None else [])
    return ", ".join(held + (["no change"] if filtered else [])) or UNCONFINED


def _network(ground: Ground, terms: Terms, ruleset: Ruleset | None, filtered: bool) -> str:
    held = ["empty namespace"] if ground.enclosure.network else []
    held += ["no sockets"] if filtered and not terms.ports else []
    if not held:
        return UNCONFINED
    if ruleset and ruleset.refuses_tcp:
        held.append(f"TCP to port {', '.join(map(str, terms.ports))} only" if terms.ports else "no TCP")
    return ", ".join(held)


def _unix_sockets(ground: Ground, scoped: bool, refused: bool) -> str:
    if refused:
        return "none"
    if not (ground.enclosure.network or scoped):
        return UNCONFINED
    emptied = [folder for folder in ground.enclosure.emptied if folder != SHARED_MEMORY]
    return "abstract ones refused, by path open" + (f" outside {', '.join(emptied)}" if emptied else "")


def _signals(scoped: bool, uid: int | None, own_only: bool) -> str:
    held = (["Landlock"] if scoped else []) + (["another user"] if uid is not None else [])
    return ", ".join(held + (["only to itself"] if own_only else [])) or UNCONFINED
