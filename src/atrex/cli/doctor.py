"""`atrex doctor`: what works here, what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class Check:
    """One thing looked for. `detail` says what was found; `how` says how to get what is missing."""

    section: str
    name: str
    works: bool
    detail: str = ""
    how: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Devices, DSLs, profilers, sandbox: what works here, what is missing and how to get it."""
    checks = run_checks()
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
        return
    section = ""
    width = max(len(check.name) for check in checks)
    for check in checks:
        if check.section != section:
            section = check.section
            print(f"{section}")
        detail = check.detail if check.works else "; ".join(filter(None, [check.detail, check.how]))
        print(f"  {check.name:{width}}  {'works  ' if check.works else 'missing'}  {detail}")


SECTIONS: tuple[tuple[str, Callable[[], Iterator[Check]]], ...]


def run_checks() -> list[Check]:
    """Every check, in order. A check that breaks is itself reported as missing, with the error."""
    checks: list[Check] = []
    for section, look in SECTIONS:
        try:
            checks += look()
        except Exception as error:  # a diagnosis has to survive whatever is broken here
            text = str(error).splitlines()[0] if str(error) else ""
            checks.append(Check(section, section, False, f"the check itself failed: {type(error).__name__}: {text}"))
    return checks


def _devices() -> Iterator[Check]:
    from atrex.errors import UserError
    from atrex.hardware.calibrate import cached_cpu_chip
    from atrex.hardware.detect import check_device, devices

    for info in devices():
        listed = f"chip {info.chip}" if info.chip else "not a listed chip"
        how = "add a file to atrex/hardware/chips to get ceilings and S"
        yield Check("devices", info.device, info.chip is not None, f"{info.name}, {info.arch}, {listed}", how)
    try:
        check_device("cuda:0")
    except UserError as error:
        how = "install a CUDA or ROCm build of torch and the driver (https://pytorch.org/get-started)"
        yield Check("devices", "cuda:0", False, str(error).removeprefix("device cuda:0: "), how)
    cpu = cached_cpu_chip()
    detail = f"calibrated, uncertainty {cpu.uncertainty:.0%}" if cpu else "not calibrated yet"
    yield Check("devices", "cpu ceilings", cpu is not None, detail, "atrex hardware calibrate --device cpu")
    yield from _drivers()
    yield from _fp8()


def _drivers() -> Iterator[Check]:
    from atrex.profiling import nvml

    version = nvml.driver_version()
    yield Check("devices", "NVIDIA driver", version is not None, version or "", "needed for NVIDIA GPUs only")
    amdgpu = Path("/sys/module/amdgpu")
    version = _read(amdgpu / "version") or "in-kernel" if amdgpu.exists() else None
    yield Check("devices", "AMD driver", version is not None, version or "", "needed for AMD GPUs only (amdgpu, ROCm)")


def _fp8() -> Iterator[Check]:
    import torch

    from atrex.hardware.chip import load_chip
    from atrex.hardware.detect import devices

    names = [name for name in ("float8_e4m3fn", "float8_e4m3fnuz") if hasattr(torch, name)]
    yield Check("devices", "fp8 in torch", bool(names), ", ".join(names), "install torch 2.1 or newer")
    for info in devices():
        if info.device != "cpu" and info.chip:
            encoding = load_chip(info.chip).fp8
            detail = encoding or "fp8 work is charged at the 16-bit peak"
            yield Check("devices", f"fp8 on {info.device}", encoding is not None, detail)


def _dsls() -> Iterator[Check]:
    from atrex.errors import UserError
    from atrex.hardware.native import find_compiler

    yield _package("DSLs", "triton", "triton", "pip install triton==3.6.0")
    triton = importlib.util.find_spec("triton")
    gluon = bool(triton and (Path(str(triton.origin)).parent / "experimental" / "gluon").is_dir())
    yield Check("DSLs", "gluon", gluon, "in triton" if gluon else "", "pip install 'triton>=3.4', it comes with it")
    yield _package("DSLs", "cutedsl", "nvidia-cutlass-dsl", "pip install nvidia-cutlass-dsl (NVIDIA, Linux)")
    yield _package("DSLs", "flydsl", "flydsl", "pip install flydsl, and LLVM 19's ld.lld for cross-compiling (AMD)")
    yield _program("DSLs", "nvcc", "install the CUDA toolkit, or put its bin folder on PATH", _cuda_folders())
    yield _program("DSLs", "hipcc", "install ROCm, for HIP sources on AMD", ["/opt/rocm/bin"])
    try:
        yield Check("DSLs", "C++ compiler", True, find_compiler())
    except UserError as error:
        yield Check("DSLs", "C++ compiler", False, "", str(error))
    yield _package("DSLs", "ninja", "ninja", "pip install ninja (builds cpp candidates)")


def _profilers() -> Iterator[Check]:
    from atrex.profiling.collector import CollectorUnavailable
    from atrex.profiling.cupti import load_library

    try:
        yield Check("profilers", "CUPTI", True, Path(load_library()._name).name)
    except CollectorUnavailable as error:
        how = "comes with CUDA builds of torch; or pip install nvidia-cuda-cupti-cu12, or set CUDA_HOME"
        yield Check("profilers", "CUPTI", False, str(error), how)
    how = "install Nsight Compute, with the CUDA toolkit or from developer.nvidia.com"
    yield _program("profilers", "ncu", how, [*_cuda_folders(), *_newest_first("/opt/nvidia/nsight-compute/*")])
    yield _program("profilers", "rocprofv3", "install rocprofiler-sdk with ROCm", ["/opt/rocm/bin"])
    perf = _program("profilers", "perf", "install linux-tools for this kernel (Debian: linux-perf)")
    paranoid = _read(Path("/proc/sys/kernel/perf_event_paranoid"))
    yield replace(perf, detail=f"{perf.detail} (perf_event_paranoid {paranoid})") if perf.works else perf


def _sandbox() -> Iterator[Check]:
    from atrex.hardware import sandbox

    abi = sandbox.landlock_abi()
    how = "needs Linux 5.13 or newer with Landlock enabled (lsm=landlock,...)"
    yield Check("sandbox", "Landlock", abi is not None, f"ABI {abi}" if abi else "", how)
    for name, flags in (
        ("user namespace", sandbox.CLONE_NEWUSER),
        ("network namespace", sandbox.CLONE_NEWUSER | sandbox.CLONE_NEWNET),
        ("pid namespace", sandbox.CLONE_NEWUSER | sandbox.CLONE_NEWPID),
    ):
        reason = sandbox.can_unshare(flags)
        how = "allow unprivileged user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces)"
        yield Check("sandbox", name, reason is None, reason or "for this user", how)
    works = sandbox.can_set_no_new_privs()
    yield Check("sandbox", "no_new_privs", works, "can be set" if works else "", "needs Linux 3.5 or newer")
    yield _program("sandbox", "bwrap", "stands in where Landlock is missing: install bubblewrap")
    yield from _workers()


def _workers() -> Iterator[Check]:
    """What holds a worker of the judge here: one is started for each kind of device, and says it itself."""
    from atrex.evaluate.confine import describe
    from atrex.evaluate.spawn import WorkerDied, WorkerTimeout, Zygote
    from atrex.hardware.detect import devices

    how = "candidates could read or change what they should not: judge only those you trust, or in a container"
    kinds = {info.device.split(":")[0]: info.device for info in reversed(devices())} | {"cpu": "cpu"}
    zygote = Zygote()
    try:
        for device in kinds.values():
            name = f"workers on {device}"
            try:
                worker = zygote.spawn({"device": device, "threads": 1})
                worker.start()
            except (WorkerDied, WorkerTimeout) as error:
                yield Check("sandbox", name, False, f"no worker starts: it {error or 'did not answer'}", how)
                continue
            yield Check("sandbox", name, not worker.held["unconfined"], describe(worker.held), how)
            worker.close()
    finally:
        zygote.close()


SECTIONS = (("devices", _devices), ("DSLs", _dsls), ("profilers", _profilers), ("sandbox", _sandbox))


def _package(section: str, name: str, distribution: str, how: str) -> Check:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Check(section, name, True, version(distribution))
    except PackageNotFoundError:
        return Check(section, name, False, "", how)


def _program(section: str, name: str, how: str, folders: list[str] | None = None) -> Check:
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders or []) or os.devnull)
    return Check(section, name, path is not None, path or "", how)


def _cuda_folders() -> list[str]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [str(Path(home) / "bin") for home in homes if home]


def _newest_first(pattern: str) -> list[str]:
    from glob import glob

    return sorted(glob(pattern), reverse=True)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
