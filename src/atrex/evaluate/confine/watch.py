"""Bounds that no kernel limit keeps: memory, disk and number of processes of a worker with everything it started.

The zygote looks five times a second. What costs more than reading a few small files of /proc is looked at only when
the machine's own totals have moved: a watch that is felt would be part of what it watches.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from atrex.evaluate.confine.limits import Limits
from atrex.evaluate.confine.namespaces import SHARED_MEMORY
from atrex.evaluate.confine.processes import descendants

PERIOD = 0.2  # seconds
_GROWTH = 64 << 20  # bytes of the machine's shared memory, or of the file system, that call for a closer look
_GROWTH_FILES = 1000
_LOOK_ANYWAY = 50  # periods
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Excess:
    """A limit that was exceeded: "memory", "disk" or "processes", and a phrase that follows "the worker"."""

    what: str
    text: str


class Watch:
    """The watch over one worker. `folders` are what it may write to; they may be moved while it runs."""

    def __init__(self, pid: int, limits: Limits, folders: list[str], private_shared_memory: bool):
        self.pid, self.limits = pid, limits
        self._folders = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) for folder in folders]
        self._shared_folder = private_shared_memory
        self._shared_then, self._shared = _shared_memory_of_machine(), 0
        self._space_then = self._space()
        self._periods = 0

    def close(self) -> None:
        for fd in self._folders:
            os.close(fd)
        self._folders = []

    def look(self) -> Excess | None:
        """What the worker takes too much of, if anything."""
        pids = descendants([self.pid])
        if len(pids) > self.limits.processes:
            return Excess("processes", f"ran {len(pids)} processes at once, over its limit of {self.limits.processes}")
        self._periods += 1
        return self._look_at_memory(pids) or self._look_at_disk(pids)

    def _look_at_memory(self, pids: list[int]) -> Excess | None:
        used = sum(resident_bytes(pid) for pid in pids)
        now = _shared_memory_of_machine()
        if abs(now - self._shared_then) > _GROWTH or self._periods % _LOOK_ANYWAY == 0:
            self._shared_then, self._shared = now, open_file_bytes(pids, _in_memory) + self._shared_folder_bytes()
        used += self._shared
        if used <= self.limits.memory:
            return None
        return Excess("memory", f"used {used >> 20} MiB of memory, over its limit of {self.limits.memory >> 20} MiB")

    def _shared_folder_bytes(self) -> int:
        if not self._shared_folder:
            return 0
        about = os.statvfs(SHARED_MEMORY)
        return (about.f_blocks - about.f_bfree) * about.f_frsize

    def _space(self) -> tuple[int, int]:
        if not self._folders:
            return 0, 0
        about = os.statvfs(self._folders[0])
        return (about.f_blocks - about.f_bfree) * about.f_frsize, about.f_files - about.f_ffree

    def _look_at_disk(self, pids: list[int]) -> Excess | None:
        used, files = self._space()
        if (
            used - self._space_then[0] < _GROWTH
            and files - self._space_then[1] < _GROWTH_FILES
            and self._periods % _LOOK_ANYWAY
        ):
            self._space_then = min(used, self._space_then[0]), min(files, self._space_then[1])
            return None
        self._space_then = used, files
        limits, device = self.limits, os.fstat(self._folders[0]).st_dev
        size, count = open_file_bytes(pids, lambda _, about: about.st_nlink == 0 and about.st_dev == device), 0
        for nbytes in (n for fd in self._folders for n in file_sizes(fd)):
            size, count = size + nbytes, count + 1
            if size > limits.disk:
                return Excess("disk", f"wrote more than its limit of {limits.disk >> 20} MiB to its folder")
            if count > limits.files:
                return Excess("disk", f"made more than its limit of {limits.files} files")
        return None


def resident_bytes(pid: int) -> int:
    """Resident memory of a process that no file on disk backs: anonymous and shared."""
    total = 0
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) << 10
    return total


def _shared_memory_of_machine() -> int:
    with open("/proc/meminfo", "rb") as meminfo:
        return next((int(line.split()[1]) << 10 for line in meminfo if line.startswith(b"Shmem:")), 0)


def open_file_bytes(pids: list[int], counts: Callable[[str, os.stat_result], bool]) -> int:
    """Bytes taken by the files that processes hold open and that `counts` (by name and status), each counted once."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = f"/proc/{pid}/fd/{name}"
                    about = os.stat(path)
                    if stat.S_ISREG(about.st_mode) and counts(os.readlink(path), about):
                        found[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _in_memory(name: str, _: os.stat_result) -> bool:
    return name.startswith("/memfd:")


def file_sizes(fd: int) -> Iterator[int]:
    """Bytes on disk of every entry below an open folder, links as links; what cannot be listed counts as endless."""
    waiting = [f"/proc/self/fd/{fd}"]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENOTDIR:
                yield _ENDLESS
