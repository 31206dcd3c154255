"""C++ on the CPU: shared libraries built from the candidate's own source, by torch's extension loader or by hand.

The artifact is the built library, found among the files mapped into this process. Adoption is host time: inside the
candidate's libraries against inside ATen (`atrex.dsls.host_time`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, register
from atrex.dsls.libraries import LibrarySession

_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", ".cpp", ".cc", ".cxx")


class CppSession(LibrarySession):
    """Observes the libraries of one candidate, and how much of the host's time is spent in them."""

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        from atrex.dsls.host_time import HostTime

        self._time = HostTime(self.owner_of_library)

    def install(self) -> None:
        self._time.install()

    def close(self) -> None:
        self._time.uninstall()

    def missing(self) -> list[str]:
        foreign = {Path(p).name for p in self._time.called if self.owner_of_library(p) == "unknown"}
        return sorted({*super().missing(), *foreign})

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
