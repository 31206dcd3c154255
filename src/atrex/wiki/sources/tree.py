"""Where an upstream's files come from: a clone or a local tree, with the commit and licence that are pinned."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.wiki.index import index_folder
from atrex.wiki.sources.symbols import CPP, PYTHON
from atrex.wiki.vocabulary import DATA, nearest, read_yaml

# The first phrases that tell the usual licences apart, looked for in this order in a licence file's text.
_LICENCES = (
    ("Apache-2.0", r"Apache License\s+Version 2\.0|apache\.org/licenses/LICENSE-2\.0"),
    ("BSD-3-Clause", r"Neither the name of"),
    ("BSD-2-Clause", r"Redistributions in binary form must reproduce"),
    ("MIT", r"Permission is hereby granted, free of charge"),
    ("MPL-2.0", r"Mozilla Public License,? (?:Version|v\.) ?2\.0"),
    ("GPL-3.0", r"GNU GENERAL PUBLIC LICENSE\s+Version 3"),
)
_LARGEST = 2 << 20
_SKIP = {".git", "build", "node_modules", "__pycache__", ".venv"}


@dataclass(frozen=True)
class Tree:
    """An upstream on disk. `commit` is None for a tree without git; `dirty` says that files differ from the commit."""

    name: str
    root: Path
    url: str | None
    commit: str | None
    dirty: bool
    licence: str
    licence_file: str | None


@lru_cache(maxsize=1)
def upstreams() -> Mapping[str, Mapping[str, Any]]:
    """The recommended projects by name: url, licence, dsls, what."""
    return read_yaml((DATA / "upstreams.yaml").read_text())


def find_tree(where: str, name: str | None, ref: str | None, timeout: float = 900.0) -> Tree:
    """A recommended name, a git address or a local folder as a tree; addresses are cloned into the cache.

    Raises UserError when it is none of these, the clone fails, or a name was given that cannot be a file's.
    """
    if where in upstreams() and not Path(where).exists():
        name, where = name or where, upstreams()[where]["url"]
    local = Path(where)
    if not local.is_dir() and not re.match(r"^(https?|ssh|git|file)://|^[\w.-]+@[\w.-]+:", where):
        hint = nearest(where, list(upstreams()))
        raise UserError(f"{where}: no folder, no git address and no recommended project{hint}")
    name = name or re.sub(r"\.git$", "", where.rstrip("/").rpartition("/")[2]).lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,60}", name):
        raise UserError(f"--name {name}: expected lower-case letters, digits, dots and dashes")
    if local.is_dir():
        if ref is not None:
            raise UserError(f"--ref {ref}: a local folder is read as it is")
        return _describe(name, local.resolve(), None)
    return _describe(name, _clone(where, name, ref, timeout), where)


def _clone(url: str, name: str, ref: str | None, timeout: float) -> Path:
    target = index_folder() / "sources" / f"{name}.tree"
    fresh = target.with_suffix(f".new-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "-c", "protocol.ext.allow=never", "clone", "--quiet", "--depth", "1", "--no-tags"]
    command += ["--branch", ref] if ref else []
    env = os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
    try:
        done = subprocess.run(
            [*command, "--", url, str(fresh)], capture_output=True, text=True, env=env, timeout=timeout
        )
    except FileNotFoundError:
        raise UserError("git is not here: install it, or give a local folder") from None
    except subprocess.TimeoutExpired:
        shutil.rmtree(fresh, ignore_errors=True)
        raise UserError(f"{url}: not cloned after {timeout:g} s") from None
    if done.returncode:
        shutil.rmtree(fresh, ignore_errors=True)
        raise UserError(f"{url}: cannot be cloned: {' '.join(done.stderr.split())[-300:]}")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return target


def _describe(name: str, root: Path, url: str | None) -> Tree:
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    dirty = bool(commit and _git(root, "status", "--porcelain", "--untracked-files=no"))
    url = url or (_git(root, "remote", "get-url", "origin") if commit else None)
    licence, file = _licence(root)
    return Tree(name, root, url, commit, dirty, licence, file)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _licence(root: Path) -> tuple[str, str | None]:
    files = sorted(
        path for path in root.iterdir() if re.match(r"(?i)(licen[cs]e|copying)", path.name) and path.is_file()
    )
    for path in files:
        text = path.read_text(errors="replace")
        named = re.search(r"SPDX-License-Identifier: *([\w.+-]+)", text)
        if named:
            return named.group(1), path.name
        for licence, phrase in _LICENCES:
            if re.search(phrase, text):
                return licence, path.name
    return ("unknown", files[0].name) if files else ("none found", None)


def source_files(tree: Tree) -> list[Path]:
    """The files to index, in order: Python, CUDA, HIP and C++, none that is huge, hidden, or reached by a link."""
    found = []
    for folder, names, files in os.walk(tree.root):
        names[:] = sorted(name for name in names if name not in _SKIP and not name.startswith("."))
        for file in sorted(files):
            path = Path(folder) / file
            if file.endswith(PYTHON + CPP) and not path.is_symlink() and path.stat().st_size <= _LARGEST:
                found.append(path)
    return found


def digest(files: list[Path]) -> str:
    """A digest of the files' contents, for trees without a commit."""
    total = hashlib.sha256()
    for path in files:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
