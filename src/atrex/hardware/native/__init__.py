"""The native helper: cache flush, cold-cache transfers and arithmetic peaks, built on first use with the C++ compiler.

The library is cached under the calibration cache, keyed by its sources, the compiler and the CPU (it is built with
-march=native, so it must not travel between machines).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from atrex.errors import UserError
from atrex.hardware.cache import calibration_cache_dir, cpu_model

HERE = Path(__file__).parent
SOURCES = ("common.h", "bandwidth.cpp", "peaks.cpp")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
COMPILERS = ("g++", "c++", "clang++")


def find_compiler() -> str:
    """Path of the C++ compiler: $CXX, else g++, c++ or clang++. Raises UserError when there is none."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise UserError(f"no C++ compiler ({wanted or 'g++'}) on PATH: install g++ (Debian and Ubuntu: apt install g++)")


def build(
    cache_dir: Path | None = None,
    here: Path = HERE,
    sources: tuple[str, ...] = SOURCES,
    flags: tuple[str, ...] = FLAGS,
) -> Path:
    """A library built from `sources` in `here`, compiled unless the cache has it: the native helper by default.

    Raises UserError naming the compiler when that fails.
    """
    compiler = find_compiler()
    cache = (cache_dir or calibration_cache_dir()) / "native"
    digest = hashlib.sha256()
    for name in sources:
        digest.update((here / name).read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest.update("\0".join((*flags, compiler, version, cpu_model(), platform.machine())).encode())
    library = cache / f"atrex-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    try:
        cache.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".so", dir=cache)
    except OSError as error:
        raise UserError(f"{cache}: cannot write there ({error.strerror}); set ATREX_CACHE_DIR") from None
    os.close(handle)
    command = [compiler, *flags, *(str(here / name) for name in sources if name.endswith(".cpp")), "-o", name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        os.unlink(name)
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        line = next((text for text in lines if "error" in text), lines[0])
        raise UserError(f"{compiler}: cannot build the native helper: {line}")
    os.replace(name, library)
    return library


@lru_cache(maxsize=1)
def lib() -> ctypes.CDLL:
    """The loaded library (built on first use), with argument types set.

    `atrex_flush(pointer, bytes)` evicts the lines of a buffer from every cache; `atrex_flush_supported()` is 0 where
    the CPU cannot (not x86): `atrex_sweep(pointer, bytes)` over twice the last-level cache stands in. Raises UserError.
    """
    handle = ctypes.CDLL(str(build()))
    pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    doubles = ctypes.POINTER(ctypes.c_double)
    handle.atrex_flush_supported.argtypes = []
    handle.atrex_flush_supported.restype = integer
    handle.atrex_flush.argtypes = [pointer, size]
    handle.atrex_flush.restype = None
    handle.atrex_sweep.argtypes = [pointer, size]
    handle.atrex_sweep.restype = None
    handle.atrex_transfer.argtypes = [pointer, pointer, pointer, size]
    handle.atrex_transfer.argtypes += [*([integer] * 6), ctypes.c_double, pointer, size, doubles]
    handle.atrex_transfer.restype = integer
    handle.atrex_touch.argtypes = [pointer, size, integer]
    handle.atrex_touch.restype = None
    handle.atrex_peak.argtypes = [ctypes.c_char_p, integer, ctypes.c_double, integer, ctypes.c_double, doubles]
    handle.atrex_peak.restype = integer
    handle.atrex_region.argtypes = [integer, integer, doubles]
    handle.atrex_region.restype = None
    return handle


def atrex_flush_supported() -> bool:
    """Whether single cache lines can be flushed from user space here."""
    return bool(lib().atrex_flush_supported())
