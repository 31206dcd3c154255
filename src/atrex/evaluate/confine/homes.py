"""The folders that workers write to, seen from the judge: what a candidate left in them is hostile data.

A worker is granted its folders when it is forked, on CUDA before its candidate is known. So a candidate's home is the
worker's own empty one, moved to the candidate's place: what was granted goes along, and compilers that keep absolute
paths find them again in the next unit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

_PATIENCE = 10.0  # seconds for the removal of one tree


@dataclass
class Folders:
    """Of one worker: `work` for its temporary files; `home` for the candidate, where it is now."""

    work: Path
    home: Path


class Homes:
    """The scratch folder of a zygote. Everything directly in it belongs to the judge, what lies deeper to workers."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="atrex-"))
        self.root.chmod(0o711)
        self.shared = self.root / "shared"
        self.shared.mkdir(mode=0o755)
        self._placed: set[Path] = set()

    def new(self, uid: int | None) -> Folders:
        """Folders for a worker that runs as `uid` (None: as this process)."""
        # A worker of the same user may have changed the modes of what it could not open.
        for shared in (self.shared, *self.shared.iterdir()):
            shared.chmod(0o755)
        self.root.chmod(0o711)
        work, home = (Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.root)) for kind in ("worker", "home"))
        if uid is not None:
            for folder in (work, home):
                os.chown(folder, uid, uid)
        return Folders(work, home)

    def share(self, path: Path | str) -> str:
        """A copy that every worker can read, and none can change."""
        copy = self.shared / Path(path).name
        if not copy.exists():
            shutil.copyfile(path, copy)
            copy.chmod(0o755)
        return str(copy)

    def place(self, folders: Folders, key: str, name: str, source: str, alone: bool) -> tuple[Path, Path]:
        """Make a worker's home that of the candidate `key`: (its source file, its cache, kept from an earlier worker).

        With `alone` the homes of other candidates are removed first, for a worker that is not kept from reading them.
        The worker must have run no candidate yet.
        """
        place = self._free_place(key)
        if alone:
            for other in self.root.glob("candidate-*"):
                if other != place and other not in self._placed:
                    remove(other)
        cache = folders.home / "cache"
        if place.exists():
            earlier = place.rename(place.with_name(f"earlier-{folders.home.name}"))
            _move_folder(earlier / "cache", cache)
            remove(earlier)
        if not cache.exists():
            cache.mkdir()
            owner = os.stat(folders.home)
            if owner.st_uid != os.getuid():
                os.chown(cache, owner.st_uid, owner.st_gid)
        with open(folders.home / name, "x", encoding="utf-8") as file:
            file.write(source)
        os.chmod(folders.home / name, 0o644)
        folders.home = folders.home.rename(place)
        self._placed.add(place)
        return place / name, place / "cache"

    def _free_place(self, key: str) -> Path:
        places = (self.root / f"candidate-{key}-{n}" for n in range(len(self._placed) + 1))
        return next(place for place in places if place not in self._placed)

    def release(self, folders: Folders) -> None:
        """The worker is gone: its temporary files go too, its candidate's home stays for the next one."""
        remove(folders.work)
        if folders.home in self._placed:
            self._placed.discard(folders.home)
        else:
            remove(folders.home)

    def forget(self) -> None:
        """Remove the homes of candidates that no worker has: their compiled kernels too."""
        for home in (path for kind in ("candidate", "earlier") for path in self.root.glob(f"{kind}-*")):
            if home not in self._placed:
                remove(home)

    def close(self) -> None:
        remove(self.root)


def _move_folder(old: Path, new: Path) -> None:
    """Move a folder if it is one and can be moved: anything else that a candidate put there stays behind."""
    try:
        os.close(_open_folder(str(old), None))
        os.rename(old, new)
    except OSError:
        return


def remove(path: Path) -> None:
    """Remove a tree, however deep and whatever its modes. No link is followed, and no path gets long.

    Folders are emptied one by one: what folders they hold is moved up to the root of the tree and waits there.
    """
    try:
        root = _open_folder(str(path), None)
    except FileNotFoundError:
        return
    deadline = time.monotonic() + _PATIENCE
    try:
        prefix, number = secrets.token_hex(8), count()
        while (names := os.listdir(root)) and time.monotonic() < deadline:  # a process may live that adds to it
            for name in names:
                _empty(root, name, prefix, number)
        os.rmdir(path)
    except OSError:
        return  # it holds what this user cannot remove: it stays, in a folder of temporary files
    finally:
        os.close(root)


def _empty(root: int, name: str, prefix: str, number: Iterator[int]) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=root)
        return
    folder = _open_folder(name, root)
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                os.close(_open_folder(entry.name, folder))
                os.rename(entry.name, f"{prefix}-{next(number)}", src_dir_fd=folder, dst_dir_fd=root)
            else:
                os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)


def _open_folder(name: str, parent: int | None) -> int:
    """Open a folder that is no link, after giving its owner every right to it."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        with contextlib.suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path)
