"""CUDA C++: libraries built by nvcc from the candidate's own source, through torch's extension loader or by hand.

The artifact is the built library, found among the files mapped into this process. Its kernels are the functions of the
cubins inside it; where those are compressed, the library's own symbols, since nvcc gives the host side of a kernel the
same name.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, register
from atrex.dsls.elf import cubins, functions
from atrex.dsls.libraries import LibrarySession
from atrex.dsls.offline.replace import replace
from atrex.dsls.triton import TritonSession

if TYPE_CHECKING:
    from atrex.dsls.offline import Attempts, Target

# Kernels in an anonymous namespace of a .cu file: PyTorch's own look like this, and so do a candidate's.
_ANONYMOUS = re.compile(r"^_ZN\d+_GLOBAL__N__")


class CudaSession(LibrarySession):
    """Observes the libraries of one candidate. Triton kernels that it launches as well are another DSL's."""

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        self._kernels: dict[str, frozenset[str]] = {}  # library path -> kernels
        self._triton = TritonSession(scratch, source)
        self._undo = contextlib.ExitStack()

    def install(self) -> None:
        self._triton.aside = lambda: self.aside()
        try:
            self._triton.install()
        except ImportError:
            self._triton.close()
        self._install_aside()

    def _install_aside(self) -> None:
        """nvcc runs in a process of its own, and the extension loader waits for it (torch 2.11 and 2.13)."""
        from torch.utils import cpp_extension

        name = "_write_ninja_file_and_build_library"
        if build := getattr(cpp_extension, name, None):
            replace(self._undo, cpp_extension, name, self.built_aside(build))

    def close(self) -> None:
        self._triton.close()
        self._undo.close()

    def _device_code(self, path: str) -> frozenset[str]:
        if path not in self._kernels:
            data = Path(path).read_bytes()
            inside = [name for code in cubins(data) for name in functions(code)]
            self._kernels[path] = frozenset(inside or (functions(data) if b".nv_fatbin" in data else ()))
        return self._kernels[path]

    def artifacts(self) -> list[dict]:
        """Libraries with device code."""
        paths = {Path(path).name for path, exists in self.mapped().items() if exists and self._device_code(path)}
        return [row for row in super().artifacts() if row["name"] in paths]

    def owner(self, kernel_name: str) -> Owner:
        target = {name for path, exists in self.mapped().items() if exists for name in self._device_code(path)}
        if kernel_name in target and _ANONYMOUS.match(kernel_name):
            return "target"
        return classify(kernel_name, target, self._triton.launched_names())


@register
class Cuda(DSL):
    """CUDA C++ on NVIDIA GPUs."""

    name = "cuda"
    devices = ("cuda",)
    imports = ("torch.utils.cpp_extension",)
    targets = ("sm_",)
    constraints = (
        "Write every computation as __global__ functions in CUDA C++ inside this one file, built by "
        "torch.utils.cpp_extension (load or load_inline). torch may allocate outputs and take views, not compute. No "
        "cuBLAS, cuDNN, CUTLASS or other prebuilt kernels, no ATen calls from C++, no torch.compile. Sources free of "
        "torch's headers build in seconds and can be compiled without a GPU: pass pointers and the stream to an "
        'extern "C" launcher through ctypes.'
    )

    def matches(self, imports: Iterable[str], tree: ast.Module) -> int:
        """The extension loader or ctypes, beside CUDA source: a `__global__`, a .cu file, or nvcc in a string."""
        loaders = ("torch.utils.cpp_extension", "torch.utils", "ctypes")
        if not any(i == loader or i.startswith(loader + ".") for i in imports for loader in loaders):
            return 0
        strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        named = {k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords}
        cuda = any("__global__" in s or s.endswith((".cu", "/nvcc")) or s == "nvcc" for s in strings)
        return len("torch.utils.cpp_extension") + 1 if cuda or "cuda_sources" in named else 0

    def instrument(self, scratch: Path, source: Path) -> CudaSession:
        session = CudaSession(scratch, source)
        session.apply_env()
        session.install()
        return session

    def lacks(self, target: Target) -> str | None:
        if find_nvcc() is None:
            return "nvcc is not here: install the CUDA toolkit, or set CUDA_HOME"
        return None

    def offline_env(self, target: Target, scratch: Path) -> dict[str, str]:
        return {"TORCH_CUDA_ARCH_LIST": f"{target.capability // 10}.{target.capability % 10}"}

    def compiling(self, target: Target, session: CudaSession, log: Attempts) -> AbstractContextManager[None]:
        from atrex.dsls.offline.nvcc import compiling

        return compiling(target, log, find_nvcc())


def find_nvcc() -> str | None:
    """nvcc in CUDA_HOME or CUDA_PATH, on PATH, or where the toolkit installs itself."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    for home in filter(None, homes):
        if os.access(f"{home}/bin/nvcc", os.X_OK):
            return f"{home}/bin/nvcc"
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
