"""Load single kernel modules out of serving frameworks, whose packages import a whole server.

`modules("vllm", ...)` lets Python find the modules that are listed for it, in the installed distribution and unchanged.
The packages around them are entered without running their __init__. Whatever else of the framework a kernel module
imports is either given as the fact that it is on this machine (which platform, how many processors), or a placeholder
that raises when it is used.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from benchmarks.references.registry import NotInstalled


class Absent:
    """What a kernel module imports and must not need: it may be named, subclassed, asked for parts, but not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, part: str) -> Any:
        if part.startswith("__"):
            raise AttributeError(part)
        return Absent(f"{self._name}.{part}")

    def __mro_entries__(self, _: tuple) -> tuple:
        return ()

    def __or__(self, _: object) -> Any:
        return self

    __ror__ = __or__

    def __getitem__(self, _: object) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{self._name} is not loaded by this check")

    def __bool__(self) -> bool:
        raise RuntimeError(f"{self._name} is not loaded by this check")


class _Finder:
    """Of the packages under `root`: runs `real` modules, gives `facts`, and stands in for all others."""

    def __init__(self, root: str, real: tuple[str, ...], facts: Mapping[str, Mapping[str, Any]]) -> None:
        self.root, self.real, self.facts = root, real, facts

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.root and not name.startswith(self.root + "."):
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if name in self.real:
            return found
        spec = importlib.machinery.ModuleSpec(name, self)
        folders = found.submodule_search_locations if found else None
        spec.submodule_search_locations = list(folders) if folders else []
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__dict__.update(self.facts.get(name, {}))
        module.__dict__["__getattr__"] = lambda part: _part(name, part, self)


def _part(name: str, part: str, finder: _Finder) -> Any:
    if part.startswith("__"):
        raise AttributeError(part)
    whole = f"{name}.{part}"
    if whole in finder.real or whole in finder.facts:
        return importlib.import_module(whole)
    return Absent(whole)


_INSTALLED: dict[str, _Finder] = {}


def modules(root: str, real: tuple[str, ...], facts: Mapping[str, Mapping[str, Any]]) -> Callable[[str], ModuleType]:
    """A function that imports a module of `root` by its full name. Raises NotInstalled when `root` is not here."""
    if root not in _INSTALLED:
        if importlib.machinery.PathFinder.find_spec(root) is None:
            raise NotInstalled(f"{root} is not installed")
        if root in sys.modules:
            raise NotInstalled(f"{root} was imported before in full")
        _INSTALLED[root] = _Finder(root, real, facts)
        sys.meta_path.insert(0, _INSTALLED[root])
    return importlib.import_module


def library(package: str, *parts: str) -> None:
    """Load the compiled operators PACKAGE/PARTS of an installed package; they appear under torch.ops.

    Raises NotInstalled when the file is missing or was built for another torch or device.
    """
    found = importlib.machinery.PathFinder.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise NotInstalled(f"{package} is not installed")
    path = Path(list(found.submodule_search_locations)[0], *parts)
    if not path.is_file():
        raise NotInstalled(f"{package} has no {'/'.join(parts)}")
    tried: set[str] = set()
    while True:
        try:
            ctypes.CDLL(str(path))  # whose error names what is missing
            torch.ops.load_library(str(path))
            return
        except OSError as error:
            wanted = str(error).partition(":")[0]
            place = _packaged(wanted)
            if place is None or wanted in tried:
                raise NotInstalled(f"{package}/{'/'.join(parts)} cannot be loaded: {error}") from None
            tried.add(wanted)
            ctypes.CDLL(str(place), mode=ctypes.RTLD_GLOBAL)


def _packaged(name: str) -> Path | None:
    """A shared library of that name in NVIDIA's Python packages, which lie in no folder that the loader searches."""
    for folder in sys.path:
        for place in sorted(Path(folder, "nvidia").glob(f"*/lib/{name}")) if folder else []:
            return place
    return None


def log(name: str) -> logging.Logger:
    """A logger that has the frameworks' extra methods."""
    logger = logging.getLogger(name)
    for extra, level in (("info_once", "info"), ("warning_once", "warning"), ("debug_once", "debug")):
        setattr(logger, extra, getattr(logger, level))
    return logger


def processors() -> int:
    """How many multiprocessors the current device has."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def custom_op(*_: Any, **__: Any) -> None:
    """In place of registering an operator with torch's dispatcher: the Python function is called as it is."""
    return None


def first_configuration() -> None:
    """From here on, kernels that would tune themselves run with the first of their configurations.

    Their results do not depend on it but in rounding, and to tune all of them takes longer than all checks.
    """
    from triton.runtime.autotuner import Autotuner

    start = Autotuner.__init__

    def first(self, fn, arg_names, configs, *rest, **named):
        start(self, fn, arg_names, configs[:1], *rest, **named)

    Autotuner.__init__ = first
