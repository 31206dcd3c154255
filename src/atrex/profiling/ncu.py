"""Nsight Compute: run a command under it, and read what it says about each kernel.

The command brackets what is to be profiled with cudaProfilerStart and cudaProfilerStop (`atrex.profiling.forward`
does), so that warm-up, compilation and autotuning are not seen. Clocks are left as they are (``--clock-control none``):
durations are those that serving sees, and the device's settings are not touched. Caches are flushed before every pass.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from glob import glob
from pathlib import Path

from atrex.errors import UserError

DATA = Path(__file__).parent / "data"
_MISSING = re.compile(r"[Ff]ailed to find metric\s+(?:regex:)?\^?\(?([A-Za-z0-9_.]+)")
_TRIES = 12


@dataclass
class Launch:
    """One kernel launch: its demangled name, grid and block as ncu prints them, and its counters in base units."""

    name: str
    grid: str
    block: str
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def us(self) -> float | None:
        ns = self.counters.get("gpu__time_duration.sum")
        return None if ns is None else ns / 1e3


@lru_cache(maxsize=1)
def metrics() -> dict[str, str]:
    """The metrics that are collected, each with what it says."""
    import yaml

    groups = yaml.safe_load((DATA / "ncu.yaml").read_text())
    return {name: meaning for group in groups.values() for name, meaning in group.items()}


def find_ncu() -> str:
    """ncu on PATH, beside the CUDA toolkit, or where it installs itself. UserError says how to get it."""
    folders = [f"{os.environ[key]}/bin" for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    folders += ["/usr/local/cuda/bin", *sorted(glob("/opt/nvidia/nsight-compute/*"), reverse=True)]
    path = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(folders))
    if path is None:
        raise UserError("ncu is not here: install Nsight Compute, with the CUDA toolkit or from developer.nvidia.com")
    return path


def version(ncu: str) -> str:
    """Its version ("2025.3.1.0"), or "unknown"."""
    try:
        text = subprocess.run([ncu, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(r"Version\s+([\d.]+)", text)
    return found.group(1) if found else "unknown"


Execute = Callable[[Sequence[str], float, Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a command within seconds, in an environment: its status, and what it printed as text."""


def run_here(command: Sequence[str], timeout: float, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """With the rights of this process."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=dict(env))


def profile(
    command: Sequence[str],
    report: Path,
    timeout: float = 600.0,
    env: dict[str, str] | None = None,
    execute: Execute = run_here,
) -> tuple[list[Launch], list[str]]:
    """Run a command under ncu: the launches between its profiler's start and stop, and metrics that are not known here.

    `report` is where ncu's own report goes (.ncu-rep), for its user interface; `execute` runs ncu. Raises UserError
    when ncu cannot count (permission), the command fails, nothing was launched, or it takes longer than `timeout`
    seconds.
    """
    ncu, wanted, missing = find_ncu(), list(metrics()), []
    for _ in range(_TRIES):
        options = ["--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none"]
        options += ["--cache-control", "all", "--replay-mode", "kernel", "--metrics", ",".join(wanted)]
        text = _run([ncu, *options, "--export", str(report), "--force-overwrite", *command], timeout, env, execute)
        unknown = [name for name in wanted if name in set(_MISSING.findall(text))]
        if not unknown:
            break
        missing += unknown
        wanted = [name for name in wanted if name not in unknown]
    file = report if report.exists() else Path(f"{report}.ncu-rep")
    if not file.exists():
        raise UserError(f"ncu wrote no report: no kernel was launched between start and stop. {_last(text)}")
    show = [ncu, "--import", str(file), "--csv", "--page", "raw", "--print-units", "base"]
    table = _run(show, timeout, None, execute)
    launches = read_csv(table)
    if not launches:
        raise UserError("ncu saw no kernel: forward launched nothing on the device")
    seen = {name for launch in launches for name in launch.counters}
    missing += [name for name in wanted if name not in seen]
    return launches, missing


def _run(command: list[str], timeout: float, env: dict[str, str] | None, execute: Execute) -> str:
    try:
        done = execute(command, timeout, {**os.environ, **(env or {})})
    except subprocess.TimeoutExpired:
        raise UserError(f"ncu: not finished after {timeout:g} s; give --timeout more") from None
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be run ({error.strerror})") from None
    text = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in text:
        raise UserError(
            "ncu may not read performance counters as this user: run as root or with CAP_SYS_ADMIN, or load the driver "
            "with NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
        )
    if done.returncode and not _MISSING.search(text):
        raise UserError(f"ncu ended with status {done.returncode}: {_last(text)}")
    return text


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line]
    return " ".join((errors or lines or ["no output"])[-1].split())[:300]


def read_csv(text: str) -> list[Launch]:
    """The launches in the output of ``ncu --csv --page raw``: a header, a line of units, then a line a launch.

    Lines of ncu and of the program before the header are skipped. Raises UserError when there is no header.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",') or line.startswith("ID,")), None)
    if start is None:
        raise UserError('ncu printed no table: expected a line that begins with "ID"')
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    launches = []
    for row in rows:
        if not (row.get("ID") or "").strip():  # the line of units
            continue
        launch = Launch(row["Kernel Name"], row.get("Grid Size", ""), row.get("Block Size", ""))
        for name, value in row.items():
            if name is not None and "__" in name:
                number = _number(value)
                if number is not None:
                    launch.counters[name] = number
        launches.append(launch)
    return launches


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
