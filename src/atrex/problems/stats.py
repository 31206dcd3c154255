"""What a suite consists of: weights, shapes, precisions, phases, arithmetic intensity, where its shapes come from."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from atrex.errors import UserError
from atrex.problems.model import Problem, Shape, Suite
from atrex.roofline.work import Work

# FLOP/byte, from which an operator counts as compute-bound. No chip's ridge: these lie at 30 and above.
COMPUTE_BOUND = 10.0
PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Weight:
    """An operator's importance weight, and the weight of all operators down to it; None where the suite has none."""

    operator: str
    phase: str | None
    shipped: bool
    weight: float | None
    share: float | None
    cumulative: float | None


@dataclass(frozen=True)
class OperatorStats:
    """One operator; intensity in FLOP/byte and regime are over its published shapes (all, where none is)."""

    operator: str
    weight: float | None
    cumulative: float | None
    shapes: int
    added: int
    dtype: str | None
    phase: str
    regime: str
    intensity: float | None
    framework: str | None
    profiles: int | None


@dataclass(frozen=True)
class SuiteStats:
    """A suite by operator, heaviest first, and counts of its published shapes and operators.

    `origins` counts shapes by the operator's primary framework, the first that its provenance names; `backends` by the
    chip and the backend of the production kernel; `regimes`, `dtypes` and `phases` count operators.
    """

    operators: list[OperatorStats]
    missing: list[str]
    shapes: int
    added: int
    profiles: int
    origins: dict[str, int]
    backends: dict[str, dict[str, int]]
    regimes: dict[str, int]
    dtypes: dict[str, int]
    phases: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def suite_weights(suite: Suite, phase: str | None = None) -> list[Weight]:
    """Operators, heaviest first, with their weight, and their share among those that run in `phase`.

    An operator with a weight but without a folder is listed too, unless `phase` is given: only folders know it. Raises
    UserError for another phase than "prefill" and "decode".
    """
    if phase is not None and phase not in PHASES:
        raise UserError(f"--phase {phase}: expected {' or '.join(PHASES)}")
    names = [*suite.problems, *(name for name in suite.weights if name not in suite.problems and phase is None)]
    names = [name for name in names if phase is None or phase in suite.problems[name].metadata.phase.split("/")]
    names.sort(key=lambda name: (-suite.weights.get(name, 0.0), name))
    total = sum(suite.weights.get(name, 0.0) for name in names)
    rows, reached = [], 0.0
    for name in names:
        weight = suite.weights.get(name)
        share = None if weight is None or not total else weight / total
        reached += share or 0.0
        known = suite.problems.get(name)
        cumulative = None if share is None else reached
        rows.append(Weight(name, known.metadata.phase if known else None, known is not None, weight, share, cumulative))
    return rows


def suite_stats(suite: Suite) -> SuiteStats:
    """Count what `suite` ships. Raises UserError where a folder cannot tell the work of a shape."""
    weights = suite_weights(suite)
    operators = [_operator(suite.problems[row.operator], row) for row in weights if row.shipped]
    origins: Counter[str] = Counter()
    backends: dict[str, Counter[str]] = {}
    for problem in suite.problems.values():
        framework = problem.metadata.provenance.framework or "unknown"
        for shape in published_shapes(problem):
            origins[framework.split("/")[0]] += 1
            meta = problem.metadata.shapes.get(shape.id)
            for chip, production in (meta.production if meta else {}).items():
                backends.setdefault(chip, Counter())[production.backend or "unknown"] += 1
    return SuiteStats(
        operators=operators,
        missing=[row.operator for row in weights if not row.shipped],
        shapes=sum(row.shapes for row in operators),
        added=sum(row.added for row in operators),
        profiles=sum(row.profiles or 0 for row in operators),
        origins=_ranked(origins),
        backends={chip: _ranked(counts) for chip, counts in sorted(backends.items())},
        regimes=_ranked(Counter(row.regime for row in operators)),
        dtypes=_ranked(Counter(row.dtype or "unknown" for row in operators)),
        phases=_ranked(Counter(row.phase for row in operators)),
    )


def published_shapes(problem: Problem) -> list[Shape]:
    """The shapes of a problem that its metadata calls published; all of them where it calls none so."""
    metas = problem.metadata.shapes
    found = [s for s in problem.shapes.values() if s.id in metas and metas[s.id].origin == "published"]
    return found or list(problem.shapes.values())


def intensity_and_regime(works: Iterable[Work]) -> tuple[float | None, str]:
    """The median of W / Q in FLOP/byte, and "compute", "memory" or, for an operator without arithmetic, "index".

    All FLOPs count alike, whatever the engine and dtype.
    """
    ratios = [work.total_flops / work.total_bytes for work in works if work.total_bytes]
    median = statistics.median(ratios) if ratios else None
    if median is None or not any(ratios):
        return None, "index"
    return median, "compute" if median >= COMPUTE_BOUND else "memory"


def _operator(problem: Problem, row: Weight) -> OperatorStats:
    shapes = published_shapes(problem)
    intensity, regime = intensity_and_regime(problem.work(shape) for shape in shapes)
    meta = problem.metadata
    return OperatorStats(
        operator=problem.operator,
        weight=row.weight,
        cumulative=row.cumulative,
        shapes=len(shapes),
        added=len(problem.shapes) - len(shapes),
        dtype=meta.dtype,
        phase=meta.phase,
        regime=regime,
        intensity=intensity,
        framework=meta.provenance.framework,
        profiles=meta.provenance.profiles,
    )


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(counts.most_common())
