"""Import the Python files of problem folders, each under a module name of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from atrex.errors import UserError

_LOADED: dict[tuple[str, int, int], ModuleType] = {}


def load_module(path: Path) -> ModuleType:
    """The module at `path`, imported once for each content on disk. Raises UserError when it cannot be imported."""
    path = path.resolve()
    label = f"{path.parent.name}/{path.name}"
    try:
        stat = path.stat()
    except OSError:
        raise UserError(f"{label}: missing file") from None
    key = (str(path), stat.st_mtime_ns, stat.st_size)
    if key not in _LOADED:
        # Two folders may hold the same operator, so the name carries the whole path and version.
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
        name = f"atrex_problem_{path.parent.name}_{path.stem}_{digest}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            text = " ".join(str(error).split())
            raise UserError(f"{label}: cannot be imported: {type(error).__name__}: {text}") from error
        _LOADED[key] = module
    return _LOADED[key]
