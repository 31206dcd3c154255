"""C++ on the CPU: shared libraries built from the candidate's own source, by torch's extension loader or by hand.

The artifact is the built library, found among the files mapped into this process. Adoption is host time: inside the
candidate's libraries against inside ATen (`atrex.dsls.host_time`).
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, Session, register

_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", ".cpp", ".cc", ".cxx")
_VENDOR = re.compile(r"blas|lapack|mkl|dnnl|onednn|fftw|libtorch|xnnpack", re.IGNORECASE)
_SYSTEM = ("/usr/", "/lib", "/opt/", "/proc/", "/sys/", "/dev/")


class CppSession(Session):
    """Observes the libraries of one candidate. A library counts as the target's if it lies below `scratch`."""

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        from atrex.dsls.host_time import HostTime

        self._inductor = os.path.join(os.path.realpath(self.env()["TORCHINDUCTOR_CACHE_DIR"]), "")
        self._below = os.path.join(str(self.scratch), "")
        places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
        self._system = (*_SYSTEM, *(os.path.join(os.path.realpath(p), "") for p in places))
        self._time = HostTime(self._owner_of_library)

    def install(self) -> None:
        self._time.install()

    def close(self) -> None:
        self._time.uninstall()

    def _owner_of_library(self, path: str) -> Owner | None:
        if path.startswith(self._inductor):
            return "dsl"
        if path.startswith(self._below):
            return "target"
        if _VENDOR.search(os.path.basename(path)):
            return "vendor"
        if path.startswith(self._system) or not os.path.exists(path):
            return None  # the loader's own libraries; a bare name such as libc.so.6 is no path that exists
        return "unknown"  # a prebuilt library that came with the candidate

    def _mapped(self) -> dict[str, bool]:
        """Shared libraries of the target mapped into this process: path -> whether the file still exists."""
        found = {}
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\n").split(maxsplit=5)[5:]
                if path and self._owner_of_library(path[0].removesuffix(" (deleted)")) == "target" and ".so" in path[0]:
                    found[path[0].removesuffix(" (deleted)")] = not path[0].endswith(" (deleted)")
        return found

    def artifacts(self) -> list[dict]:
        rows = []
        for path, exists in sorted(self._mapped().items()):
            if exists:
                data = Path(path).read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                rows.append({"name": Path(path).name, "kind": "so", "sha256": digest, "bytes": len(data)})
        return rows

    def missing(self) -> list[str]:
        gone = {Path(path).name for path, exists in self._mapped().items() if not exists}
        foreign = {Path(p).name for p in self._time.called if self._owner_of_library(p) == "unknown"}
        return sorted(gone | foreign)

    def owner(self, kernel_name: str) -> Owner:
        return "torch" if kernel_name.startswith("aten::") else classify(kernel_name)

    def adoption_begin(self) -> None:
        self._time.begin()

    def adoption_end(self) -> list[dict]:
        return self._time.end()


@register
class Cpp(DSL):
    """C++ with OpenMP on the CPU."""

    name = "cpp"
    devices = ("cpu",)
    imports = ("torch.utils.cpp_extension",)
    targets = ("cpu",)
    usual_target = "cpu"
    constraints = (
        "Write every computation in C++ (OpenMP allowed) inside this one file, built by torch.utils.cpp_extension "
        "or by a compiler call into a temporary folder. torch may allocate outputs and take views, not compute. No "
        "prebuilt libraries, no torch.compile, no ATen calls from C++."
    )

    def matches(self, imports: Iterable[str], tree: ast.Module) -> int:
        """As usual, and ctypes beside a compiler's or a C++ file's name in a string."""
        imports = list(imports)
        if found := super().matches(imports, tree):
            return found
        if not any(i == "ctypes" or i.startswith("ctypes.") for i in imports):
            return 0
        strings = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        return len("ctypes") if any(s.split(" ")[0].endswith(_COMPILERS) for s in strings) else 0

    def preload(self) -> None:
        """Import the extension loader, a second of every candidate's import, where that starts no device.

        In a CUDA build its import looks for a device, which starts the driver and a thread: no process to fork from.
        """
        import torch

        if not torch.backends.cuda.is_built():
            import torch.utils.cpp_extension  # noqa: F401

        import atrex.dsls.host_time  # noqa: F401

    def instrument(self, scratch: Path, source: Path) -> CppSession:
        session = CppSession(scratch, source)
        session.apply_env()
        session.install()
        return session
