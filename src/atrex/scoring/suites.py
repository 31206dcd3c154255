"""What a run of a suite of one's own is scored over: the suite's weights and shapes, as run.json keeps them.

The shipped suite is scored over the published release. A suite that was built from traces has weights and shapes of
its own; they stand in run.json, so that the run is scored alike wherever the suite is by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atrex.errors import UserError
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.units import SCORED_ORIGINS
from atrex.scoring.weights import Weights, normalize, published_weights

if TYPE_CHECKING:
    from atrex.problems.model import Suite
    from atrex.scoring.runs import Run

KEY = "scored_over"


def scored_over(suite: Suite) -> dict[str, Any]:
    """The entry of run.json for a suite with mined shapes and weights: {} for any other."""
    shapes = {
        name: count
        for name, problem in suite.problems.items()
        if (count := sum(meta.origin in SCORED_ORIGINS for meta in problem.metadata.shapes.values()))
    }
    origins = {meta.origin for problem in suite.problems.values() for meta in problem.metadata.shapes.values()}
    if "mined" not in origins or not suite.weights or set(suite.weights) - set(shapes):
        return {}
    return {KEY: {"weights": dict(suite.weights), "shapes": shapes}}


def terms(runs: Sequence[Run]) -> tuple[Weights, Mapping[str, int]]:
    """(weights, shapes by operator) that `runs` are scored over. Raises UserError for runs of different suites."""
    found: list[dict[str, Any] | None] = []
    for run in runs:
        entry = run.run.get(KEY)
        if entry is not None and not _sound(entry):
            raise UserError(f"{run.path}/run.json: {KEY}: expected weights and shapes by operator")
        if entry not in found:
            found.append(entry)
    if len(found) > 1:
        raise UserError("these runs are of suites with different weights and shapes: score them one at a time")
    if not found or found[0] is None:
        return published_weights(), PUBLISHED_SHAPES
    suite = runs[0].run.get("suite")
    return Weights(dict(found[0]["weights"]), f"the suite's own ({suite})"), found[0]["shapes"]


def within(weights: Weights, shapes: Mapping[str, int]) -> Weights:
    """`weights` over the operators of `shapes` alone, normalized again; a note says what was left out.

    Raises UserError if nothing is left.
    """
    outside = {name: value for name, value in weights.values.items() if name not in shapes and value}
    left = {name: value for name, value in weights.values.items() if name in shapes}
    if not outside:
        return Weights(left, weights.source, weights.notes)
    try:
        normal = normalize(left)
    except ValueError:
        raise UserError(f"{weights.source}: no weight for any operator of the suite that was judged") from None
    share = sum(outside.values())
    named = ", ".join(sorted(outside, key=lambda name: -outside[name])[:3])
    note = f"{share:.1%} of the weight is of operators outside the suite that was judged, left out: {named}"
    return Weights(normal, weights.source, [*weights.notes, note])


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(k), dict) for k in ("weights", "shapes")):
        return False
    numbers = [*entry["weights"].values(), *entry["shapes"].values()]
    return all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
