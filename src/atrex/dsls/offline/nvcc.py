"""CUDA C++ without a device: the device code of what torch's extension loader is asked to build, not the host's.

`load` and `load_inline` end in `_jit_compile`, which gets the sources as files. Here each .cu file is compiled to a
cubin for the target, and the loader gives back a stand-in. A function of a stand-in that `ctypes` would call returns 0
and the candidate goes on; one of an extension module would return tensors that nobody knows, so the forward ends there.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atrex.dsls.offline.attempts import Attempts, Enough, Undetermined, one_line
from atrex.dsls.offline.replace import replace
from atrex.dsls.offline.target import Target

# What load_inline puts before CUDA sources; the device code of a candidate has no use for it.
_IMPLICIT = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
_TORCH_HEADER = re.compile(r'^\s*#\s*include\s*[<"](torch|ATen|c10|caffe2)/', re.MULTILINE)
_ARCHITECTURE = re.compile(r"^(-gencode|--generate-code|-arch|--gpu-architecture|-code|--gpu-code)(=.*)?$")


@contextlib.contextmanager
def compiling(target: Target, log: Attempts, nvcc: str) -> Iterator[None]:
    """Compile extensions with `nvcc` for `target`, into `log`, until the end of the block."""
    import torch
    import torch.utils.cpp_extension as extension

    built: dict[str, _Library] = {}

    original = inspect.signature(extension._jit_compile)

    def jit_compile(*args: Any, **kwargs: Any) -> Any:
        given = original.bind(*args, **kwargs).arguments
        name, sources = given["name"], given["sources"]
        paths = [Path(path) for path in ([sources] if isinstance(sources, str) else sources)]
        flags = [*extension.COMMON_NVCC_FLAGS, "-std=c++17", *_flags(given["extra_cuda_cflags"] or ())]
        folders = list(given["extra_include_paths"] or ())
        device = [path for path in paths if path.suffix == ".cu"]
        made = [(path.name, _cubin(nvcc, path, target, flags, folders, log)) for path in device]
        library = _Library(name, made, log)
        library.note()
        where = os.path.join(given["build_directory"], f"{name}.so")
        built[os.path.realpath(where)] = library
        return _Module(library) if given["is_python_module"] else where

    load_library = ctypes.CDLL

    def cdll(name: Any, *args: Any, **kwargs: Any) -> Any:
        found = built.get(os.path.realpath(name)) if isinstance(name, str | os.PathLike) else None
        return _Functions(found) if found else load_library(name, *args, **kwargs)

    look_up = torch._ops._OpNamespace.__getattr__

    def operator(namespace: Any, name: str) -> Any:
        try:
            return look_up(namespace, name)
        except AttributeError:
            if built:
                return _ends(list(built.values())[-1])
            raise

    with contextlib.ExitStack() as undo:
        replace(undo, extension, "_jit_compile", jit_compile)
        replace(undo, ctypes, "CDLL", cdll)
        replace(undo, torch._ops._OpNamespace, "__getattr__", operator)
        yield


def _cubin(nvcc: str, path: Path, target: Target, flags: Sequence[str], folders: Sequence[str], log: Attempts) -> bytes:
    """The cubin of one file. Raises Undetermined or RuntimeError."""
    source = path.read_text()
    device = source.replace("#include <torch/types.h>\n", "", 1) if source.startswith(_IMPLICIT) else source
    needs_torch = bool(_TORCH_HEADER.search(device))
    alone, out = path.with_suffix(".device.cu"), path.with_suffix(f".{target.name}.cubin")
    alone.write_text(source if needs_torch else device)
    include = [*folders, *(_torch_folders() if needs_torch else ())]
    command = [nvcc, "-cubin", f"-arch={target.name if target.name.startswith('sm_') else target.arch}"]
    command += ["-o", str(out), *flags, *(f"-I{folder}" for folder in include), str(alone)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return out.read_bytes()
    said = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line or "fatal" in line]
    reason = one_line(said[0].replace(str(alone), path.name) if said else done.stderr)
    if needs_torch:
        raise Undetermined(f"{path.name} includes torch's headers, whose CUDA part is not here: {reason}")
    log.failed(path.name, "cubin", reason)
    raise RuntimeError(f"nvcc: {reason}")


def _torch_folders() -> list[str]:
    import torch.utils.cpp_extension as extension

    return extension.include_paths()


def _flags(asked: Sequence[str]) -> Iterator[str]:
    """The candidate's own flags without those that name an architecture: a cubin has one, the target's."""
    skip = False
    for flag in asked:
        if skip:
            skip = False
        elif found := _ARCHITECTURE.match(flag):
            skip = found.group(2) is None
        else:
            yield flag


class _Library:
    """What one call of the loader would have built."""

    def __init__(self, name: str, cubins: list[tuple[str, bytes]], log: Attempts):
        self.name, self._cubins, self._log = name, cubins, log

    def note(self) -> None:
        for name, content in self._cubins:
            self._log.compiled(name, "cubin", content)


def _ends(library: _Library) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        library.note()
        raise Enough(f"{library.name} was compiled, not run")

    return call


class _Module:
    """In place of an extension module."""

    def __init__(self, library: _Library):
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return _ends(self._library)


class _Function:
    """In place of a function of a `ctypes` library: notes the launch and returns 0, no error."""

    def __init__(self, library: _Library):
        self._library = library

    def __call__(self, *args: Any) -> int:
        self._library.note()
        return 0


class _Functions:
    """In place of a `ctypes.CDLL`."""

    def __init__(self, library: _Library):
        self._library = library
        self._name = library.name

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Function(self._library)
        setattr(self, name, made)
        return made

    __getitem__ = __getattr__
