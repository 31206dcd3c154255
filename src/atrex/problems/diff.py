"""Two suites beside each other: operators, shapes and weights that appear, vanish or move."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from atrex.problems.model import Problem, Suite


@dataclass(frozen=True)
class MovedShape:
    """A shape that both suites have, by the same bucket, with something changed: its exact dimensions, or its traced
    time in microseconds on a chip."""

    operator: str
    old: str
    new: str
    kwargs: dict[str, list[Any]] = field(default_factory=dict)
    us: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class SuiteDiff:
    """`weights`: operator -> (old, new), None where a suite has none for it. Shapes are (operator, id)."""

    appeared: list[str]
    vanished: list[str]
    new_shapes: list[tuple[str, str]]
    gone_shapes: list[tuple[str, str]]
    moved_shapes: list[MovedShape]
    weights: dict[str, tuple[float | None, float | None]]

    @property
    def same(self) -> bool:
        return not (self.appeared or self.vanished or self.new_shapes or self.gone_shapes or self.moved_shapes
                    or self.weights)  # fmt: skip


def diff_suites(old: Suite, new: Suite, min_move: float = 0.0, min_time: float = 0.0) -> SuiteDiff:
    """What changed from `old` to `new`.

    A mined shape is the same as another of the same fixed dimensions and buckets, any other shape only as its equal.
    Weights that move by no more than `min_move` (absolute), and traced times by no more than `min_time` (relative), are
    left out.
    """
    both = [name for name in new.problems if name in old.problems]
    new_shapes, gone_shapes, moved = [], [], []
    for name in both:
        before, after = _keyed(old.problems[name]), _keyed(new.problems[name])
        new_shapes += [(name, shape) for key, shape in after.items() if key not in before]
        gone_shapes += [(name, shape) for key, shape in before.items() if key not in after]
        for key in before.keys() & after.keys():
            found = _moved(old.problems[name], before[key], new.problems[name], after[key], min_time)
            if found is not None:
                moved.append(found)
    for name in new.problems.keys() - old.problems.keys():
        new_shapes += [(name, shape) for shape in new.problems[name].shapes]
    for name in old.problems.keys() - new.problems.keys():
        gone_shapes += [(name, shape) for shape in old.problems[name].shapes]
    return SuiteDiff(
        appeared=sorted(new.problems.keys() - old.problems.keys()),
        vanished=sorted(old.problems.keys() - new.problems.keys()),
        new_shapes=sorted(new_shapes, key=_natural),
        gone_shapes=sorted(gone_shapes, key=_natural),
        moved_shapes=sorted(moved, key=lambda m: _natural((m.operator, m.new))),
        weights=_weights(old, new, min_move),
    )


def _keyed(problem: Problem) -> dict[str, str]:
    """What makes a shape the same in another suite -> its id; the first of several."""
    found: dict[str, str] = {}
    for shape in problem.shapes.values():
        meta = problem.metadata.shapes.get(shape.id)
        if meta is not None and meta.mined is not None:
            dims = {n: d.bucket if d.bucket is not None else d.value for n, d in meta.mined.dims.items()}
            key = json.dumps(["bucket", dims], sort_keys=True)
        else:
            key = json.dumps([dict(shape.init_kwargs), dict(shape.input_kwargs)], sort_keys=True)
        found.setdefault(key, shape.id)
    return found


def _moved(old: Problem, before: str, new: Problem, after: str, min_time: float) -> MovedShape | None:
    first = {**old.shapes[before].init_kwargs, **old.shapes[before].input_kwargs}
    second = {**new.shapes[after].init_kwargs, **new.shapes[after].input_kwargs}
    kwargs = {n: [first.get(n), second.get(n)] for n in {**first, **second} if first.get(n) != second.get(n)}
    times = []
    for problem, shape in ((old, before), (new, after)):
        meta = problem.metadata.shapes.get(shape)
        times.append({} if meta is None else {chip: p.us for chip, p in meta.production.items()})
    us = {c: [times[0][c], times[1][c]] for c in times[0].keys() & times[1].keys()
          if abs(times[1][c] / times[0][c] - 1) > min_time}  # fmt: skip
    return MovedShape(new.operator, before, after, kwargs, dict(sorted(us.items()))) if kwargs or us else None


def _weights(old: Suite, new: Suite, min_move: float) -> dict[str, tuple[float | None, float | None]]:
    found = {}
    for name in {**new.weights, **old.weights}:
        before, after = old.weights.get(name), new.weights.get(name)
        if before is None and after is None:
            continue
        if abs((after or 0.0) - (before or 0.0)) > min_move:
            found[name] = (before, after)
    return dict(sorted(found.items(), key=lambda item: -abs((item[1][1] or 0.0) - (item[1][0] or 0.0))))


def _natural(pair: tuple[str, str]) -> tuple[str, int, str]:
    return pair[0], int(pair[1]) if pair[1].isdecimal() else -1, pair[1]
