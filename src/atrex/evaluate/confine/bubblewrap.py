"""Without Landlock: the zygote itself in a bubblewrap container that shows only what workers may read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from atrex.evaluate.confine import grants


def prefix(scratch: str, hidden: Iterable[str]) -> list[str] | None:
    """What to put before the zygote's command line, or None where bubblewrap is missing or does not work.

    The container has no network. Its workers share one scratch folder, and processes outside show in /proc.
    """
    program = shutil.which("bwrap")
    if program is None:
        return None
    command = [program, "--die-with-parent", "--unshare-net", "--dev", "/dev", "--tmpfs", "/tmp"]
    command += ["--bind", "/proc", "/proc"]
    for node in grants.gpu_nodes():
        command += ["--dev-bind", node, node]
    command += _folders(hidden)
    for link in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
    command += ["--bind", scratch, scratch, "--chdir", scratch, "--"]
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else None


def _folders(hidden: Iterable[str]) -> list[str]:
    """Roots, and what hides parts of them, from the top down: a root below something hidden shows again."""
    roots = [root for root in (*grants.read_roots(), *grants.installed_roots(sys.path)) if root != "/proc"]
    steps = {root: ["--ro-bind", root, root] for root in roots}
    for path in hidden:
        if path not in steps and os.path.exists(path) and any(path.startswith(root + os.sep) for root in roots):
            steps[path] = ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", os.devnull, path]
    return [word for path in sorted(steps, key=lambda p: p.count(os.sep)) for word in steps[path]]
