"""LLVM's linker for AMD code objects."""

from __future__ import annotations

import os
import shutil

_VERSIONED = ("ld.lld-22", "ld.lld-21", "ld.lld-20", "ld.lld-19")  # FlyDSL's code objects need 19


def find_linker() -> str | None:
    """LLVM's linker, new enough: in ROCM_PATH, on PATH, or where Debian puts its versions."""
    if (rocm := os.environ.get("ROCM_PATH")) and os.access(f"{rocm}/llvm/bin/ld.lld", os.X_OK):
        return f"{rocm}/llvm/bin/ld.lld"
    if os.access("/opt/rocm/llvm/bin/ld.lld", os.X_OK):
        return "/opt/rocm/llvm/bin/ld.lld"
    for name in _VERSIONED:
        if path := shutil.which(name):
            return path
    return shutil.which("ld.lld")
