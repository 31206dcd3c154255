"""One evaluation: prepare, judge unit after unit, leave a run directory that is right at every moment."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import atrex
from atrex.errors import UserError
from atrex.evaluate.budgets import CPU_LIMIT, Budgets
from atrex.evaluate.candidates import resolve
from atrex.evaluate.plan import Plan, make_plan
from atrex.evaluate.rundir import RunDirectory
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import Setup, prepare, resolve_device
from atrex.evaluate.spawn import Zygote
from atrex.evaluate.unit import UnitJudge
from atrex.problems.load import load_suite, suite_hash
from atrex.scoring.records import UnitRecord

BUSY_SHARE = 0.5  # of the cited bandwidth: a quiet device copies at 80 to 95 % of it


@dataclass(frozen=True)
class Request:
    """What a user asks of `atrex eval`; `atrex.evaluate` builds the same."""

    candidates: list[str]
    problem: str | None = None
    shapes: str | None = None
    dsl: str | None = None
    device: str = "cpu"
    seeds: int = 5
    budgets: Budgets = Budgets()
    suite: Path | None = None
    out: Path | None = None
    resume: bool = False
    quick: bool = False
    timed_calls: int | None = None
    held_out: bool = True
    all_sizes: bool = False
    readiness: bool = True
    confirm: bool = False
    require_locked: bool = False

    def effective(self) -> Request:
        """With what --quick stands for: one shape, one seed, 20 calls, no held-out shapes, no readiness."""
        if not self.quick:
            return self
        from dataclasses import replace

        return replace(self, seeds=1, timed_calls=Budgets.MIN_CALLS, held_out=False, readiness=False)


Progress = Callable[[int, int, UnitRecord], None]


@dataclass
class Outcome:
    """What an evaluation left: its records (a resumed run's earlier ones too), the description, the folder if any."""

    records: list[UnitRecord]
    about: dict[str, Any]
    path: Path | None
    interrupted: bool = False


def run(request: Request, progress: Progress | None = None, zygote: Zygote | None = None) -> Outcome:
    """Judge everything that `request` names. Raises UserError for bad input, before any unit is judged.

    A `zygote` that the caller has started already, and closes, saves the time of its imports.
    """
    request = request.effective()
    device = resolve_device(request.device)
    if request.require_locked:
        _require_locked(device)
    suite = load_suite(request.suite)
    candidates = resolve(request.candidates, list(suite.problems), request.problem)
    limit = CPU_LIMIT if device.type == "cpu" and not request.all_sizes else None
    plan = make_plan(
        suite, candidates, request.shapes, request.dsl, device.type, request.held_out, request.quick, limit
    )
    units = plan.units
    about = _about(request, device, plan, suite.version)
    directory = _open(request, about)
    seeds = directory.seeds if directory else Seeds()
    done = {(r.candidate, r.operator, r.shape) for r in directory.done} if directory else set()
    records = list(directory.done) if directory else []
    waiting = [u for u in units if u.key not in done]
    interrupted = False
    try:
        if waiting:
            setup = prepare(str(device), seeds, request.seeds, request.budgets, request.timed_calls, zygote)
            try:
                measured = _measured(setup)
                about |= measured
                if directory:
                    directory.note(**measured)
                for unit in waiting:
                    extras = {"readiness": request.readiness, "confirm": request.confirm}
                    record = UnitJudge(setup, unit, _clocks(device), **extras).run()
                    records.append(record)
                    if directory:
                        directory.add(record)
                    if progress:
                        progress(len(records), len(units), record)
                if setup.collector_fault:
                    about["adoption"] = f"not measured: {setup.collector_fault}"
                    if directory:
                        directory.note(adoption=about["adoption"])
            finally:
                setup.close()
    except KeyboardInterrupt:
        interrupted = True
    if directory:
        directory.close(finished=not interrupted)
        about = directory.about
    return Outcome(records, about, directory.path if directory else None, interrupted)


def _open(request: Request, about: dict[str, Any]) -> RunDirectory | None:
    if request.out is None:
        return None
    if request.resume:
        return RunDirectory.resume(request.out, about)
    return RunDirectory.create(request.out, about, Seeds())


def _about(request: Request, device: torch.device, plan: Plan, suite_version: str) -> dict[str, Any]:
    units = plan.units
    candidates = {}
    for unit in units:
        c = unit.candidate
        entry = candidates.setdefault(c.name, {"path": c.set_name, "file": c.name, "operator": c.operator})
        entry |= {"sha256": c.sha256, "dsl": unit.dsl}
    return {
        "atrex": atrex.__version__,
        "argv": _argv(),
        "suite": str(request.suite) if request.suite else "shipped",
        "suite_version": suite_version,
        "suite_hash": suite_hash(request.suite),
        "device": str(device),
        "device_name": device_name(device),
        "versions": versions(),
        "candidates": list(candidates.values()),
        "planned": [[u.problem.operator, u.shape.id] for u in units],
        "too_large": [list(pair) for pair in plan.too_large],
        "seed_count": request.seeds,
        "timed_calls": request.timed_calls,
        "budgets": request.budgets.as_json(),
    }


def _argv() -> list[str]:
    return ["atrex", *sys.argv[1:]] if sys.argv and Path(sys.argv[0]).name.startswith("atrex") else []


def _measured(setup: Setup) -> dict[str, Any]:
    base = setup.baseline
    return {
        "chip": setup.chip.id,
        "floor_us": base.floor_us,
        "null_us": base.null_us,
        "round_trip_us": base.round_trip_us,
        "sentinel": _sentinel(setup),
        "worker_versions": setup.zygote.versions,
    }


def _sentinel(setup: Setup) -> dict[str, Any] | None:
    """The sentinel's baseline, and whether the device was busy from the start; None on the CPU."""
    sentinel = setup.sentinel
    if sentinel is None:
        return None
    share = sentinel.bandwidth / setup.chip.memory_bandwidth
    return {"baseline_us": sentinel.baseline_us, "bandwidth_share": share, "busy_at_start": share < BUSY_SHARE}


def device_name(device: torch.device) -> str:
    """The device's own name, for records."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    import cpuinfo

    return cpuinfo.get_cpu_info().get("brand_raw") or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        try:
            from atrex.profiling.nvml import driver_version

            found["driver"] = driver_version()
        except Exception:  # noqa: BLE001 - a missing NVML leaves the field out
            pass
    return found


def _require_locked(device: torch.device) -> None:
    """Raises UserError where the device's clocks are not known to be locked."""
    if device.type != "cuda":
        raise UserError(f"--require-locked: {device} has no clocks that can be locked; it needs a CUDA device")
    state = (_clocks(device) or dict)()
    if not state or not state.get("locked"):
        raise UserError(
            f"--require-locked: the clocks of {device} are not known to be locked; set applications clocks with "
            "`nvidia-smi -ac MEMORY,SM` (a lock set with -lgc cannot be read back)"
        )


def _clocks(device: torch.device) -> Callable[[], dict[str, Any]] | None:
    if device.type != "cuda" or not torch.version.cuda:
        return None
    from atrex.profiling.nvml import clocks

    return lambda: clocks(device.index)
