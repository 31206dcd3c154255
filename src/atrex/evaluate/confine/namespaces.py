"""What the zygote leaves behind for all its workers: the network, and folders where other programs keep sockets.

There is no process namespace: memory of a GPU cannot be shared across one (CUDA's IPC handles are bound to it).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from atrex.evaluate.confine.kernel import mount, set_read_only, unshare
from atrex.hardware.sandbox import CLONE_NEWNET, CLONE_NEWUSER

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_EMPTIED = ("/tmp", "/var/tmp", "/run", "/dev/shm")
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Enclosure:
    """What of it this kernel and user allowed. `emptied` are folders that hold nothing of other programs.

    `read_only` is every mount but the scratch folder, /proc and an emptied /dev/shm.
    """

    network: bool = False
    emptied: tuple[str, ...] = ()
    read_only: bool = False


def enclose(scratch: str, kept: Iterable[str], shared_memory: int) -> Enclosure:
    """Leave for namespaces of their own: an empty network, read-only mounts, empty /tmp, /run and /dev/shm.

    `scratch` stays, and a folder that holds one of the `kept` paths stays as it is. /dev/shm gets at most
    `shared_memory` bytes. To be called by a process with one thread; whatever the kernel refuses is left out.
    """
    user, group = os.getuid(), os.getgid()
    if user == 0:
        network, mounts = unshare(CLONE_NEWNET), unshare(_CLONE_NEWNS)
    else:
        network = mounts = unshare(CLONE_NEWUSER | CLONE_NEWNET | _CLONE_NEWNS)
        if network:
            _map_identity(user, group)
    emptied: tuple[str, ...] = ()
    read_only = False
    if mounts:
        with contextlib.suppress(OSError):
            emptied = tuple(_empty(scratch, list(kept), shared_memory))
            read_only = _make_read_only([os.path.realpath(scratch), "/proc", *emptied])
            os.chdir(scratch)
    return Enclosure(network, emptied, read_only)


def _make_read_only(but: Iterable[str]) -> bool:
    try:
        set_read_only("/", True, below=True)
    except OSError:
        return False  # Linux before 5.12
    try:
        for path in but:
            set_read_only(path, False)
        return True
    except OSError:
        set_read_only("/", False, below=True)
        return False


def _map_identity(user: int, group: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)


def _empty(scratch: str, kept: list[str], shared_memory: int) -> Iterable[str]:
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    scratch = os.path.realpath(scratch)
    place = os.open(scratch, os.O_PATH | os.O_CLOEXEC)
    try:
        for folder in _EMPTIED:
            below = os.path.join(folder, "")
            if os.path.realpath(folder) != folder or not os.path.isdir(folder):
                continue
            if any(os.path.realpath(path).startswith(below) for path in kept):
                continue
            size = shared_memory if folder == SHARED_MEMORY else 1 << 20
            mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode=1777")
            if scratch.startswith(below):
                os.makedirs(scratch)
            yield folder
        mount(f"/proc/self/fd/{place}", scratch, None, _MS_BIND)  # a mount of its own in any case
    finally:
        os.close(place)
