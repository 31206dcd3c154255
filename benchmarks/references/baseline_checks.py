"""Baselines as checks: the Models of `atrex.baselines` call other libraries, and here their outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from benchmarks.references.registry import Case, Check, Run, Unsupported, register

from atrex.baselines import Baseline, Function
from atrex.outputs import by_name

Prepare = Callable[[str], Any]


def from_baseline(
    baseline: Baseline,
    kind: str,
    prefix: str = "",
    operators: Iterable[str] | None = None,
    prepare: Prepare = lambda operator: None,
    differs: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Register a check for each operator of a baseline, or for some.

    `prefix` begins their names. `prepare(operator)` makes the library loadable; it raises NotInstalled where it cannot.
    `differs` names the corner cases of operators in which the library is known to mean something else.
    """
    for operator in operators or baseline.functions:
        register(as_check(baseline, operator, kind, prefix, prepare, (differs or {}).get(operator)))


def as_check(
    baseline: Baseline, operator: str, kind: str, prefix: str = "", prepare: Prepare = lambda operator: None,
    differs: Mapping[str, str] | None = None,
) -> Check:  # fmt: skip
    """One operator of a baseline as a check; arguments as of `from_baseline`."""
    function = baseline.functions[operator]
    return Check(
        operator, f"{prefix}{function.calls}", baseline.distribution, kind, baseline.devices, _run(function, prepare),
        function.note, differs or {},
    )  # fmt: skip


def _run(function: Function, prepare: Prepare) -> Run:
    def run(case: Case) -> dict[str, torch.Tensor]:
        why = function.lacks(case.init, case.kwargs)
        if why:
            raise Unsupported(why)
        prepare(function.operator)
        metadata = case.problem.metadata
        value = function.model(**case.init).to(case.device).eval()(*case.inputs.values())
        found = by_name(value, [name for name in metadata.outputs if name not in metadata.mutates])[1]
        return found | {name: case.inputs[name] for name in metadata.mutates}

    return run
