"""Where calibration results live, and what identifies a CPU."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path


def calibration_cache_dir() -> Path:
    """$ATREX_CACHE_DIR, else $XDG_CACHE_HOME/atrex, else ~/.cache/atrex. Not created here."""
    if os.environ.get("ATREX_CACHE_DIR"):
        return Path(os.environ["ATREX_CACHE_DIR"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "atrex"


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The CPU's model name, with family, model and stepping where Linux tells them (virtual machines hide the name)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if not key.strip():
            break
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or fields.get("Model") or platform.machine()
    numbers = [fields.get(key) for key in ("cpu family", "model", "stepping")]
    return f"{name} ({'-'.join(numbers)})" if all(numbers) else name


def usable_cpus() -> int:
    """How many CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_sizes() -> dict[str, int]:
    """Bytes of the second and the last cache level ("l2", "llc") as Linux lists them for CPU 0; {} elsewhere."""
    by_level: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
            shift = {"K": 10, "M": 20, "G": 30}[size[-1]]
            by_level[int((index / "level").read_text())] = int(size[:-1]) << shift
        except (OSError, ValueError, KeyError):
            continue
    if not by_level:
        return {}
    return {"l2": by_level.get(2, 0), "llc": by_level[max(by_level)]}
