"""A package `torch` with as much of it as the recorder uses, for tests that start many programs."""

from __future__ import annotations

from pathlib import Path

SOURCE = """
import json, mmap, os, types

with open(os.path.join(os.path.dirname(__file__), "libtorch_python.so"), "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # attaching looks whether it is loaded


class Profile:
    def __init__(self, **options):
        self.options = {name: str(value) for name, value in options.items()}

    def start(self):
        autograd._enabled = True

    def stop(self):
        autograd._enabled = False

    def export_chrome_trace(self, path):
        with open(path, "w") as file:
            json.dump({"traceEvents": [], "options": self.options, "padding": padding}, file)


class Range:
    def __init__(self, name):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Module:
    def _call_impl(self, *args):
        return self.forward(*args)

    def _wrapped_call_impl(self, *args):
        return self._call_impl(*args)

    __call__ = _wrapped_call_impl


padding = ""
nn = types.SimpleNamespace(Module=Module)
cuda = types.SimpleNamespace(
    capturing=False, is_initialized=lambda: cuda.capturing, is_current_stream_capturing=lambda: cuda.capturing
)
profiler = types.SimpleNamespace(ProfilerActivity=types.SimpleNamespace(CPU="cpu", CUDA="cuda"), profile=Profile)
autograd = types.SimpleNamespace(
    _enabled=False, _profiler_enabled=lambda: autograd._enabled, profiler=types.SimpleNamespace(record_function=Range)
)
_C = types.SimpleNamespace(_profiler=types.SimpleNamespace(_ExperimentalConfig=dict))
"""


def install(folder: Path) -> Path:
    """The folder to put on PYTHONPATH."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(SOURCE)
    (folder / "torch" / "libtorch_python.so").write_bytes(b"-")
    return folder
