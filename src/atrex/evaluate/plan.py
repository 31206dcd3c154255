"""What a run will judge, fixed before anything runs: candidates, DSLs, shapes, in order."""

from __future__ import annotations

import re

from atrex import dsls
from atrex.errors import UserError
from atrex.evaluate.candidates import Candidate, static_fault
from atrex.evaluate.unit import Unit
from atrex.problems.model import Problem, Shape, Suite

_RANGE = re.compile(r"(\d+)-(\d+)")


def select_shapes(problem: Problem, text: str | None) -> list[Shape]:
    """The shapes that "0,3-5" names, in the suite's order; all of them for None. Raises UserError."""
    if text is None:
        return list(problem.shapes.values())
    wanted: set[str] = set()
    for part in (p.strip() for p in text.split(",")):
        span = _RANGE.fullmatch(part)
        ids = [str(i) for i in range(int(span[1]), int(span[2]) + 1)] if span else [part]
        for shape_id in ids:
            if shape_id not in problem.shapes:
                known = list(problem.shapes)
                raise UserError(
                    f"--shapes {text}: {problem.operator} has no shape {shape_id!r}; "
                    f"expected ids {known[0]} to {known[-1]}"
                )
            wanted.add(shape_id)
    return [shape for shape_id, shape in problem.shapes.items() if shape_id in wanted]


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


def make_plan(
    suite: Suite,
    candidates: list[Candidate],
    shapes: str | None,
    dsl: str | None,
    device_type: str,
    held_out: bool = True,
    first_only: bool = False,
) -> list[Unit]:
    """All units of a run. A file that was named itself and cannot be a candidate is refused here (UserError);
    in a directory it stays, and becomes failed units."""
    units: list[Unit] = []
    for candidate in candidates:
        problem = suite.problem(candidate.operator)
        chosen = select_shapes(problem, shapes)[: 1 if first_only else None]
        if candidate.set_name == candidate.name:
            forward = type(problem.reference(chosen[0])).forward
            fault = static_fault(candidate, forward, dict(chosen[0].init_kwargs))
            if fault:
                raise UserError(fault[1])
        name = choose_dsl(candidate, dsl, device_type)
        units += [Unit(candidate, problem, shape, name) for shape in chosen]
        if held_out:
            units += [Unit(candidate, problem, shape, name, held_out=True) for shape in problem.held_out.values()]
    return units
