"""Beginning a campaign: the problem, the shapes, the device, and its roofline before any code is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from atrex import dsls
from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.evaluate.setup import resolve_device
from atrex.hardware.chip import CPU, Chip, load_chip
from atrex.hardware.detect import describe, parse_device
from atrex.optimize.dropout import POLICIES
from atrex.optimize.model import Roofline, Settings, ShapeRoofline
from atrex.optimize.store import Campaign
from atrex.problems.load import load_suite, read_json, suite_hash
from atrex.problems.model import Problem, Suite
from atrex.roofline.bound import roofline


@dataclass(frozen=True)
class Wish:
    """What a campaign is asked for. `shapes` as on the command line, None for all that the device can hold."""

    operator: str
    dsl: str
    device: str
    shapes: str | None = None
    suite: Path | None = None
    agent: str | None = None
    model: str | None = None
    error: float = 0.05
    policy: str = "none"
    seed: int = 0
    restarts: int = 2
    iterations: int | None = None
    usd: float | None = None
    until_s: float | None = None
    deduplicate: bool = True
    chip: str | None = None
    """Of a device on another machine; None for a device of this one."""
    width: int = 1
    contest_rounds: int = 56
    contest_s: float = 1200.0

    @property
    def dsls(self) -> list[str]:
        """The DSLs that a kernel may be written in, the usual one first."""
        return self.dsl.split(",")


def begin(path: Path, wish: Wish) -> Campaign:
    """Make a campaign in a folder of its own. Raises UserError for what cannot be optimized here, or has no source."""
    if wish.policy not in POLICIES:
        raise UserError(f"--dropout {wish.policy}: unknown policy; expected one of {', '.join(POLICIES)}")
    suite = load_suite(wish.suite)
    problem = suite.problem(wish.operator)
    elsewhere = wish.chip is not None
    device = _device(wish.device) if elsewhere else resolve_device(wish.device)
    for name in wish.dsls:
        if device.type not in dsls.get(name).devices:
            raise UserError(f"--dsl {name}: does not run on {device.type}")
    if len(set(wish.dsls)) < len(wish.dsls):
        raise UserError(f"--dsl {wish.dsl}: a DSL is named twice")
    if len(wish.dsls) > 1 and wish.agent:
        raise UserError(f"--dsl {wish.dsl}: an agent is asked for one DSL; several are for a campaign by hand")
    chip = load_chip(wish.chip) if elsewhere else _chip(str(device))
    if elsewhere and (chip.id == CPU) != (device.type == CPU):
        raise UserError(f"--chip {chip.id}: is no {device.type} device; --device says of which kind the other one is")
    settings = Settings(
        operator=wish.operator,
        shapes=_shapes(suite, problem, wish, device.type),
        dsl=wish.dsl,
        device=str(device),
        chip=chip.id,
        suite=str(wish.suite.resolve()) if wish.suite else None,
        suite_hash=suite_hash(wish.suite),
        agent=wish.agent,
        model=wish.model,
        error=wish.error,
        policy=wish.policy,
        seed=wish.seed,
        restarts=wish.restarts,
        width=wish.width,
        iterations=wish.iterations,
        usd=wish.usd,
        until_s=wish.until_s,
        deduplicate=wish.deduplicate,
        contest_rounds=wish.contest_rounds,
        contest_s=wish.contest_s,
        elsewhere=elsewhere,
        created=now(),
    )
    return Campaign.create(path, settings, bounds(problem, settings.shapes, chip))


def _device(name: str) -> torch.device:
    """A device that is not looked for here. Raises UserError for what is none."""
    parse_device(name)
    return torch.device(name)


def _chip(device: str) -> Chip:
    about = describe(device) if device != CPU else None
    name = CPU if about is None else about.chip
    if name is None:
        raise UserError(f"{device}: its chip has no sourced ceilings; atrex hardware list names those that have")
    return load_chip(name)


def _shapes(suite: Suite, problem: Problem, wish: Wish, device_type: str) -> list[str]:
    from atrex.evaluate.budgets import CPU_LIMIT
    from atrex.evaluate.candidates import Candidate
    from atrex.evaluate.plan import make_plan

    stand_in = Candidate(Path(f"{problem.operator}.py"), "wish", "wish", problem.operator, "class Model: pass\n")
    limit = CPU_LIMIT if device_type == CPU else None
    plan = make_plan(suite, [stand_in], wish.shapes, wish.dsls[0], device_type, held_out=False, limit=limit)
    found = [unit.shape.id for unit in plan.units]
    if not found:
        raise UserError(f"{problem.operator}: no shape of it fits {wish.device}; name some with --shapes")
    return found


def bounds(problem: Problem, shapes: list[str], chip: Chip) -> Roofline:
    """W, Q, intensity and bound of the shapes, with the ceilings they stand on and the card of each.

    Raises UserError when a ceiling of the chip has no source.
    """
    card = f"chip-{chip.id.lower()}" if chip.id != CPU else "calibration of this CPU"
    ceilings = {"memory.bandwidth": chip.memory_bandwidth} | {
        f"peaks.{engine}.{dtype}": peak for engine, peaks in chip.peaks.items() for dtype, peak in peaks.items()
    }
    if chip.id != CPU:
        from atrex.wiki.hardware import sheets

        if card not in sheets():
            raise UserError(f"{chip.id}: no sheet in the wiki; a roofline needs sourced values")
    found = {}
    for shape in shapes:
        work = problem.work(problem.shape(shape))
        bound = roofline(work, chip)
        moved = work.bytes_read + work.bytes_written
        found[shape] = ShapeRoofline(
            flops=work.total_flops,
            bytes_moved=moved,
            intensity=work.total_flops / moved if moved else None,
            bound=bound.bound,
            roofline_us=bound.us,
        )
    entries = read_json(problem.folder / "roofline.json").get("shapes", {})
    estimated = any(entries.get(shape, {}).get("estimated", False) for shape in shapes)
    return Roofline(
        chip=chip.id, ceilings=ceilings, cards=dict.fromkeys(ceilings, card), estimated=estimated, shapes=found
    )
