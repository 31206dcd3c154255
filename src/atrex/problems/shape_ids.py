"""Shape ids as people write them: "0,3-5"."""

from __future__ import annotations

import re
from collections.abc import Iterable

from atrex.errors import UserError
from atrex.problems.model import Problem, Shape

PUBLISHED = "published"
"""In place of ids: the shapes of the published release."""

_RANGE = re.compile(r"(\d+)-(\d+)")


def names_shapes(text: str | None) -> bool:
    """Whether somebody has picked shapes one by one."""
    return text not in (None, PUBLISHED)


def select_shapes(problem: Problem, text: str | None) -> list[Shape]:
    """The shapes that "0,3-5" or "published" names, in the suite's order; all of them for None. Raises UserError."""
    if text is None:
        return list(problem.shapes.values())
    if text == PUBLISHED:
        meta = problem.metadata.shapes
        found = [s for s in problem.shapes.values() if s.id in meta and meta[s.id].origin == PUBLISHED]
        if not found:
            raise UserError(f"--shapes {PUBLISHED}: {problem.operator} has no published shape")
        return found
    wanted = set(expanded(text))
    for shape_id in expanded(text):
        if shape_id not in problem.shapes:
            known = list(problem.shapes)
            raise UserError(
                f"--shapes {text}: {problem.operator} has no shape {shape_id!r}; expected ids {known[0]} to {known[-1]}"
            )
    return [shape for shape_id, shape in problem.shapes.items() if shape_id in wanted]


def expanded(text: str) -> list[str]:
    """The ids that "0,3-5" names; "" names none."""
    found: list[str] = []
    for part in (p.strip() for p in text.split(",") if text):
        span = _RANGE.fullmatch(part)
        found += [str(i) for i in range(int(span[1]), int(span[2]) + 1)] if span else [part]
    return found


def id_ranges(ids: Iterable[str]) -> str:
    """Ids in the form that `select_shapes` reads, runs of numbers as ranges: 0, 3, 4, 5 are "0,3-5"."""
    parts: list[list[str]] = []
    for shape_id in ids:
        last = parts[-1][-1] if parts else ""
        if last.isdecimal() and shape_id.isdecimal() and int(shape_id) == int(last) + 1:
            parts[-1].append(shape_id)
        else:
            parts.append([shape_id])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)
