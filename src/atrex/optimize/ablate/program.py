"""The tuner's measuring program with a compiler that remembers: what g++ was asked before, it has the answer to.

`program.py cpu FLUSH_LIBRARY SWEEP_BYTES KEPT_FOLDER`. Only for kernels that one's own templates give: they compile in
this process's children, and those trust what is kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from atrex.agents.tuner import measure


def keeping(run: Callable, folder: Path) -> Callable:
    """`subprocess.run` that compiles nothing twice: a library is kept by the hash of flags and source.

    Every process gets a copy of its own, as if it had compiled it.
    """

    def remembered(command, **more):
        if not (isinstance(command, list) and command[0] == "g++" and command[-2] == "-o"):
            return run(command, **more)
        sources = [Path(word) for word in command[1:-2] if word.endswith((".cpp", ".cc", ".cxx"))]
        flags = [word for word in command[1:-2] if not word.endswith((".cpp", ".cc", ".cxx"))]
        digest = hashlib.sha256("\0".join(flags).encode())
        for source in sources:
            digest.update(f"\0{source.name}\0".encode() + source.read_bytes())
        kept = folder / f"{digest.hexdigest()}.so"
        if not kept.exists():
            done = run(command, **more)
            if done.returncode:
                return done
            whole = kept.with_suffix(f".{os.getpid()}")
            shutil.copyfile(command[-1], whole)
            whole.rename(kept)
            return done
        shutil.copyfile(kept, command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    return remembered


if __name__ == "__main__":
    subprocess.run = keeping(subprocess.run, Path(sys.argv[4]))
    measure.main()
