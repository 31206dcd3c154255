"""What a run will judge, fixed before anything runs: candidates, DSLs, shapes, in order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from atrex import dsls
from atrex.errors import UserError
from atrex.evaluate.budgets import SizeLimit
from atrex.evaluate.candidates import Candidate, static_fault
from atrex.evaluate.unit import Unit
from atrex.problems.model import Problem, Shape, Suite
from atrex.problems.shape_ids import names_shapes, select_shapes
from atrex.scoring.records import NO_DSL


def choose_dsl(candidate: Candidate, name: str | None, device_type: str) -> str:
    """The target DSL: as asked, else as the candidate's imports say, else the device's usual one. Raises UserError."""
    asked = name or dsls.infer(candidate.source)
    chosen = asked or ("triton" if device_type == "cuda" else "cpp")
    dsl = dsls.get(chosen)
    if device_type not in dsl.devices:
        raise UserError(
            f"{candidate.path}: DSL {chosen} does not run on {device_type}; it needs {' or '.join(dsl.devices)}"
        )
    return chosen


@dataclass(frozen=True)
class Plan:
    """The units of a run, and the (operator, shape) pairs left out because they are too large for the device."""

    units: list[Unit]
    too_large: list[tuple[str, str]]


def make_plan(
    suite: Suite,
    candidates: list[Candidate],
    shapes: str | None,
    dsl: str | None,
    device_type: str,
    held_out: bool = True,
    first_only: bool = False,
    limit: SizeLimit | None = None,
    left_out: Collection[tuple[str, str]] = (),
) -> Plan:
    """Everything a run will judge. Shapes over `limit` are left out unless `shapes` names them.

    `left_out` are (operator, shape) pairs that are not judged even if they are named.

    A file that was named itself and cannot be a candidate is refused here (UserError); in a directory it stays, and
    becomes failed units. Raises UserError too when nothing is left to run.
    """
    units: list[Unit] = []
    too_large: dict[tuple[str, str], None] = {}
    for candidate in candidates:
        problem = suite.problem(candidate.operator)

        def fits(shape: Shape, problem: Problem = problem) -> bool:
            if limit is None or limit.fits(problem.work(shape)):
                return True
            too_large[problem.operator, shape.id] = None
            return False

        chosen = select_shapes(problem, shapes)
        _refuse(candidate, problem, chosen[0])
        if not names_shapes(shapes):
            chosen = [shape for shape in chosen if fits(shape)]
        chosen = [shape for shape in chosen if (problem.operator, shape.id) not in left_out]
        if first_only:
            chosen = chosen[:1]
        name = NO_DSL if candidate.origin else choose_dsl(candidate, dsl, device_type)
        units += [Unit(candidate, problem, shape, name) for shape in chosen]
        if held_out:
            extra = [s for s in problem.held_out.values() if (problem.operator, s.id) not in left_out and fits(s)]
            units += [Unit(candidate, problem, shape, name, held_out=True) for shape in extra]
    if not units and not too_large:
        raise UserError("nothing to run: no shape is left")
    if not units:
        raise UserError(
            f"nothing to run: every shape is too large for {device_type}; name shapes with --shapes to run them"
        )
    return Plan(units, list(too_large))


def _refuse(candidate: Candidate, problem: Problem, shape: Shape) -> None:
    if candidate.set_name != candidate.name:
        return
    fault = static_fault(candidate, type(problem.reference(shape)).forward, dict(shape.init_kwargs))
    if fault:
        raise UserError(fault[1])
