"""The judge as a Python call."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.run import Request, run
from atrex.scoring.records import UnitRecord


def evaluate(
    candidate: str | Path,
    problem: str | None = None,
    shapes: str | Iterable[int | str] | None = None,
    device: str = "cpu",
    *,
    dsl: str | None = None,
    seeds: int = 5,
    budgets: Budgets | None = None,
    suite: str | Path | None = None,
    out: str | Path | None = None,
    quick: bool = False,
) -> list[UnitRecord]:
    """Judge a candidate file (or a directory of them) and return one record a unit, held-out units included.

    `shapes` is a string as on the command line ("0,3-5") or an iterable of shape ids; None means all. Times in the
    records are microseconds. With `out`, a run directory is left there too. Raises `atrex.errors.UserError` for bad
    input; whatever the candidate does is in the records. Call it from a program that is guarded by
    ``if __name__ == "__main__"`` or not, workers are forked from a process of their own.
    """
    text = shapes if shapes is None or isinstance(shapes, str) else ",".join(map(str, shapes))
    outcome = run(
        Request(
            candidates=[str(candidate)],
            problem=problem,
            shapes=text,
            dsl=dsl,
            device=device,
            seeds=seeds,
            budgets=budgets or Budgets(),
            suite=Path(suite) if suite else None,
            out=Path(out) if out else None,
            quick=quick,
        )
    )
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.records
