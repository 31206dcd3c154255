"""One evaluation: prepare, judge unit after unit, leave a run directory that is right at every moment."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import atrex
from atrex.errors import UserError
from atrex.evaluate.budgets import CPU_LIMIT, Budgets
from atrex.evaluate.candidates import Candidate, check_problem, resolve
from atrex.evaluate.confine import warning
from atrex.evaluate.engine import Engine, Serial, Terms, UnitName
from atrex.evaluate.noise import busy_cores
from atrex.evaluate.plan import Plan, make_plan
from atrex.evaluate.pool import Pool
from atrex.evaluate.rundir import RunDirectory
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import prepare, resolve_device
from atrex.evaluate.spawn import Zygote
from atrex.problems.load import load_suite, suite_hash
from atrex.scoring.records import Origin, UnitRecord
from atrex.scoring.suites import scored_over


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
    fresh: bool = False
    """Every unit in a process of its own; else those of one candidate that follow each other share one on a GPU."""
    require_locked: bool = False
    judges: int = 1
    engine: str = "local"
    address: str | None = None
    best: bool = False
    """`candidates` is one folder of reference kernels, of which the best known ones on this chip are judged."""
    origins: Mapping[str, Origin] | None = None
    """Of a baseline: where its file for each operator comes from."""
    left_out: frozenset[tuple[str, str]] = frozenset()
    """(operator, shape) pairs that are not judged."""

    @property
    def devices(self) -> list[str]:
        """`device` as single ones: it may be several, with commas, or "cuda:all"."""
        if self.device == "cuda:all":
            return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cuda:0"]
        names = [name.strip() for name in self.device.split(",")]
        if len(set(names)) < len(names) or len({name.split(":")[0] for name in names}) > 1:
            raise UserError(f"--device {self.device}: expected different devices of one kind, such as cuda:0,cuda:1")
        return names

    def effective(self) -> Request:
        """With what --quick stands for: one shape, one seed, 20 calls, no held-out shapes, no readiness."""
        if not self.quick:
            return self
        return replace(self, seeds=1, timed_calls=Budgets.MIN_CALLS, held_out=False, readiness=False)


Progress = Callable[[int, int, UnitRecord], None]
Watch = Callable[[str, UnitName | None], None]


@dataclass
class Outcome:
    """What an evaluation left: its records (a resumed run's earlier ones too), the description, the folder if any."""

    records: list[UnitRecord]
    about: dict[str, Any]
    path: Path | None
    interrupted: bool = False


def run(
    request: Request, progress: Progress | None = None, zygote: Zygote | None = None,
    watch: Watch = lambda device, unit: None,
) -> Outcome:  # fmt: skip
    """Judge everything that `request` names. Raises UserError for bad input, before any unit is judged.

    A `zygote` that the caller has started already, and closes, saves the time of its imports. `progress` is called with
    every record, `watch` when a device begins a unit (None: it has no more).
    """
    request = request.effective()
    devices = _devices(request)
    for device in devices if request.require_locked else ():
        _require_locked(device)
    suite = load_suite(request.suite)
    candidates = _candidates(request, devices, list(suite.problems))
    if request.origins is not None:
        candidates = [replace(c, origin=request.origins[c.operator]) for c in candidates]
    limit = CPU_LIMIT if devices[0].type == "cpu" and not request.all_sizes else None
    plan = make_plan(
        suite, candidates, request.shapes, request.dsl, devices[0].type, request.held_out, request.quick, limit,
        request.left_out,
    )  # fmt: skip
    about = _about(request, devices, plan, suite.version) | scored_over(suite)
    directory = _open(request, about)
    seeds = directory.seeds if directory else Seeds()
    done = {(r.candidate, r.operator, r.shape) for r in directory.done} if directory else set()
    records = list(directory.done) if directory else []
    waiting = [u for u in plan.units if u.key not in done]
    interrupted = False
    try:
        if waiting:
            engine = _engine(request, devices, _terms(request, seeds, candidates), zygote, watch)
            try:
                _same_chip(records, engine.measured)
                _note(about, directory, engine.measured)
                if line := warning(engine.measured["confinement"]):
                    print(line, file=sys.stderr)
                if devices[0].type == "cpu" and request.engine == "local" and (line := busy_cores()):
                    print(line, file=sys.stderr)
                for record in engine.judge(waiting):
                    records.append(record)
                    if directory:
                        directory.add(record)
                    if progress:
                        progress(len(records), len(plan.units), record)
                _note(about, directory, engine.measured)
            finally:
                engine.close()
    except KeyboardInterrupt:
        interrupted = True
    if directory:
        directory.close(finished=not interrupted)
        about = directory.about
    return Outcome(records, about, directory.path if directory else None, interrupted)


def _candidates(request: Request, devices: list[torch.device], operators: list[str]) -> list[Candidate]:
    if not request.best:
        return resolve(request.candidates, operators, request.problem)
    from atrex.hardware.detect import detect
    from atrex.wiki.best import best_kernels

    if len(request.candidates) != 1 or request.engine != "local":
        raise UserError("--best: expected one folder of <operator>/<name>.py files, and a device of this machine")
    check_problem(request.problem, operators)
    chip = detect(str(devices[0]))
    wanted = [request.problem] if request.problem else operators
    found, without = best_kernels(Path(request.candidates[0]), wanted, chip)
    if without:
        print(f"note: --best: no kernel of {', '.join(without)} was measured on {chip}: left out", file=sys.stderr)
    return found


def _devices(request: Request) -> list[torch.device]:
    """The devices of this machine that `request` names; of a cluster, only their kind."""
    if request.engine not in ("local", "ray"):
        raise UserError(f"--engine {request.engine}: expected local or ray")
    if request.engine == "local":
        if request.address is not None:
            raise UserError("--address is a Ray cluster's: it needs --engine ray")
        return [resolve_device(name) for name in request.devices]
    if request.require_locked:
        raise UserError("--require-locked looks at the devices of this machine: it needs --engine local")
    if request.device not in ("cpu", "cuda", "cuda:0", "cuda:all"):
        raise UserError(f"--device {request.device}: Ray chooses the devices; expected cpu or cuda")
    return [torch.device(request.device.split(":")[0])]


def _same_chip(records: list[UnitRecord], measured: dict[str, Any]) -> None:
    """A resumed run goes on with the chip that it has begun with."""
    other = next((r.chip for r in records if r.chip != measured["chip"]), None)
    if other:
        raise UserError(f"--resume: the run was begun on {other}, here is {measured['chip']}; continue it on {other}")


def _terms(request: Request, seeds: Seeds, candidates: list[Candidate]) -> Terms:
    hidden = {str(candidate.path.resolve()) for candidate in candidates}
    hidden |= {str(path.resolve()) for path in (request.out, request.suite) if path}
    return Terms(
        seeds.secret, request.seeds, request.budgets, request.timed_calls, request.readiness, request.confirm,
        request.suite, tuple(sorted(hidden)), request.fresh,
    )  # fmt: skip


def _engine(request: Request, devices: list[torch.device], terms: Terms, zygote: Zygote | None, watch: Watch) -> Engine:
    if request.engine == "ray":
        from atrex.evaluate.ray_engine import RayEngine

        return RayEngine(devices[0].type, request.judges, terms, request.address, watch)
    if len(devices) > 1 or request.judges > 1:
        return Pool([str(device) for device in devices], request.judges, terms, watch)
    setup = prepare(
        str(devices[0]), terms.seeds, terms.seed_count, terms.budgets, terms.timed_calls, zygote, terms.hidden
    )
    return Serial(setup, terms, watch)


def _note(about: dict[str, Any], directory: RunDirectory | None, measured: dict[str, Any]) -> None:
    about |= measured
    if directory:
        directory.note(**measured)


def _open(request: Request, about: dict[str, Any]) -> RunDirectory | None:
    if request.out is None:
        return None
    if request.resume:
        return RunDirectory.resume(request.out, about)
    return RunDirectory.create(request.out, about, Seeds())


def _about(request: Request, devices: list[torch.device], plan: Plan, suite_version: str) -> dict[str, Any]:
    units = plan.units
    candidates = {}
    for unit in units:
        c = unit.candidate
        entry = candidates.setdefault(c.name, {"path": c.set_name, "file": c.name, "operator": c.operator})
        entry |= {"sha256": c.sha256, "dsl": unit.dsl}
        if c.origin:
            entry["baseline"] = c.origin.model_dump(exclude={"kernels"})
    return {
        "atrex": atrex.__version__,
        "argv": _argv(),
        "suite": str(request.suite) if request.suite else "shipped",
        "suite_version": suite_version,
        "suite_hash": suite_hash(request.suite),
        "device": request.device,
        "device_name": device_name(devices[0]) if request.engine == "local" else "a Ray cluster",
        "versions": versions(),
        "candidates": list(candidates.values()),
        "planned": [[u.problem.operator, u.shape.id] for u in units],
        "too_large": [list(pair) for pair in plan.too_large],
        "seed_count": request.seeds,
        "timed_calls": request.timed_calls,
        "fresh": request.fresh,
        "budgets": request.budgets.as_json(),
    }


def _argv() -> list[str]:
    return ["atrex", *sys.argv[1:]] if sys.argv and Path(sys.argv[0]).name.startswith("atrex") else []


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
    from atrex.profiling.nvml import clocks

    state = clocks(device.index) if torch.version.cuda else None
    if not state or not state.get("locked"):
        raise UserError(
            f"--require-locked: the clocks of {device} are not known to be locked; set applications clocks with "
            "`nvidia-smi -ac MEMORY,SM` (a lock set with -lgc cannot be read back)"
        )
