"""What ncu says of a kernel. ncu and the kernel run in a jail: the kernel shares a process with what counts for it, so
what is seen is evidence for a plan, never a verdict; but it reaches nothing beyond its folder.

What holds is the jail's: files (Landlock, read-only mounts), an empty network and process namespace, the filter of
system calls, bounds of memory, disk and processes. Two things are let through that a worker of the judge does not have,
since ncu needs them: TCP on the loopback interface of that empty network, where it speaks to the process it counts
in, and CAP_SYS_ADMIN where the driver gives counters to nobody else and this process has it. The filter refuses what
that capability would be good for outside of a driver: mounts, namespaces, BPF, keys, other processes. What the driver
itself does with it is not confined.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from atrex.agents.jail import Jail, JailError, Terms
from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.hardware.detect import describe
from atrex.problems.model import Problem, Shape
from atrex.profiling import collect, ncu
from atrex.profiling.evidence import Evidence

WARM_UP = 3
PORTS = tuple(range(49152, 49152 + 64))  # where ncu listens for what it profiles (its option --port, and connections)
CAP_SYS_ADMIN = 21
_PROGRAM = Path(__file__).with_name("cuda_forward.py")
_DRIVER = Path("/proc/driver/nvidia/params")
_PASSED_ON = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def look_cuda(
    source: Path, problem: Problem, shape: Shape, dsl: str, device: str, patience: float, seed: int = 1
) -> Evidence | None:
    """One forward of `source` under ncu, `patience` seconds at most; None where ncu is not installed.

    Raises UserError where the kernel cannot be confined, does not run there, or ncu cannot count.
    """
    try:
        program = ncu.find_ncu()
    except UserError:
        return None
    about, content = describe(device), source.read_bytes()
    fp8 = (load_chip(about.chip).fp8 if about.chip else None) or "e4m3fn"
    kept = (CAP_SYS_ADMIN,) if _admin_only() else ()
    terms = Terms(
        device="cuda", readable=[str(Path(program).resolve().parent), str(Path(program).parent)], local_ports=PORTS,
        capabilities=kept,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="atrex-look-") as root, Jail(Path(root), terms) as jail:
        (jail.workspace / "candidate.py").write_bytes(content)
        (jail.home / _PROGRAM.name).write_bytes(_PROGRAM.read_bytes())
        order = {
            "init_kwargs": dict(shape.init_kwargs), "mutates": list(problem.metadata.mutates), "device": device,
            "warmup": WARM_UP,
        }  # fmt: skip
        (jail.workspace / "order.json").write_text(json.dumps(order))
        torch.save(problem.make_inputs(shape, seed, "cpu", fp8), jail.workspace / "inputs.pt")
        command = [sys.executable, str(jail.home / _PROGRAM.name)]
        launches, missing = ncu.profile(
            command, jail.workspace / "report.ncu-rep", patience, execute=Confined(jail, source)
        )
    return collect.evidence_of(
        launches, collect.choose(launches, None, None), missing, tool_version=ncu.version(program),
        command=["ncu", _PROGRAM.name, problem.operator, shape.id], device=about, candidate=source.name,
        source=content, operator=problem.operator, shape=shape.id, dsl=dsl, work=problem.work(shape),
    )  # fmt: skip


class Confined:
    """Runs commands in a jail, one after the other, as `subprocess.run` would outside of it."""

    def __init__(self, jail: Jail, source: Path):
        self._jail, self._source = jail, source

    def __call__(
        self, command: Sequence[str], timeout: float, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Raises UserError where the jail does not hold, and subprocess.TimeoutExpired."""
        jail, printed = self._jail, {"out": [], "err": []}
        try:
            jail.start(command, {name: env[name] for name in _PASSED_ON if name in env})
            if open_ := [each for each in jail.held["unconfined"] if each != "capabilities" or not jail.held["kept"]]:
                what = ", ".join(each.replace("_", " ") for each in open_)
                raise JailError(f"{what}: not confined here, atrex doctor says what is missing")
            for stream, line in jail.lines(time.monotonic() + timeout):
                printed[stream].append(line)
            status = jail.wait()
        except JailError as error:
            raise UserError(f"{self._source}: not run under ncu, which it is in a jail only ({error})") from None
        except TimeoutError:
            raise subprocess.TimeoutExpired(list(command), timeout) from None
        finally:
            jail.stop()
        if jail.excess:
            raise UserError(f"{self._source}: under ncu it {jail.excess}")
        out, err = ("\n".join(lines) + "\n" for lines in printed.values())
        return subprocess.CompletedProcess(list(command), status, out, err)


def _admin_only() -> bool:
    """Whether the driver gives counters to CAP_SYS_ADMIN alone (its parameter RmProfilingAdminOnly)."""
    try:
        return "RmProfilingAdminOnly: 1" in _DRIVER.read_text()
    except OSError:
        return False
