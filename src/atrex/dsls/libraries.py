"""Shared libraries that a candidate builds: which of those mapped into this process are its own."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from pathlib import Path

from atrex.dsls.attribution import Owner
from atrex.dsls.base import Session

_VENDOR = re.compile(r"blas|lapack|mkl|dnnl|onednn|fftw|libtorch|xnnpack", re.IGNORECASE)
_SYSTEM = ("/usr/", "/lib", "/opt/", "/proc/", "/sys/", "/dev/")


class LibrarySession(Session):
    """A library counts as the target's if it lies below `scratch`. Artifacts are the libraries themselves."""

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        self._inductor = os.path.join(os.path.realpath(self.env()["TORCHINDUCTOR_CACHE_DIR"]), "")
        self._below = os.path.join(str(self.scratch), "")
        places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
        self._system = (*_SYSTEM, *(os.path.join(os.path.realpath(p), "") for p in places))

    def owner_of_library(self, path: str) -> Owner | None:
        """Whose a library is; None for one that is nobody's business."""
        if path.startswith(self._inductor):
            return "dsl"
        if path.startswith(self._below):
            return "target"
        if _VENDOR.search(os.path.basename(path)):
            return "vendor"
        if path.startswith(self._system) or not os.path.exists(path):
            return None  # the loader's own libraries; a bare name such as libc.so.6 is no path that exists
        return "unknown"  # a prebuilt library that came with the candidate

    def mapped(self) -> dict[str, bool]:
        """Shared libraries of the target mapped into this process: path -> whether the file still exists."""
        found = {}
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\n").split(maxsplit=5)[5:]
                if path and self.owner_of_library(path[0].removesuffix(" (deleted)")) == "target" and ".so" in path[0]:
                    found[path[0].removesuffix(" (deleted)")] = not path[0].endswith(" (deleted)")
        return found

    def artifacts(self) -> list[dict]:
        rows = []
        for path, exists in sorted(self.mapped().items()):
            if exists:
                data = Path(path).read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                rows.append({"name": Path(path).name, "kind": "so", "sha256": digest, "bytes": len(data)})
        return rows

    def missing(self) -> list[str]:
        return sorted(Path(path).name for path, exists in self.mapped().items() if not exists)
