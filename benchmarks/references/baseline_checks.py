"""Baselines as checks: the Models of `atrex.baselines` call other libraries, and here their outputs are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from benchmarks.references.registry import Case, Check, Run, Unsupported, register

from atrex.baselines import Baseline, Function
from atrex.outputs import by_name

Prepare = Callable[[str], Any]
# Outputs that are one column: libraries, and versions of one, give them as [rows] or as [rows, 1].
COLUMNS = {"fused_rmsnorm_quant": ("scale",)}


def from_baseline(
    baseline: Baseline,
    kind: str,
    prefix: str = "",
    operators: Iterable[str] | None = None,
    prepare: Prepare = lambda operator: None,
    differs: Mapping[str, Mapping[str, str]] | None = None,
    coarser: Mapping[str, str] | None = None,
    adapters: Mapping[str, int] | None = None,
) -> None:
    """Register a check for each operator of a baseline, or for some.

    `prefix` begins their names. `prepare(operator)` makes the library loadable; it raises NotInstalled where it cannot.
    `differs`, `coarser` and `adapters` give what a Check has under these names, by operator.
    """
    for operator in operators or baseline.functions:
        check = as_check(baseline, operator, kind, prefix, prepare, (differs or {}).get(operator))
        coarse, adapter = (coarser or {}).get(operator), (adapters or {}).get(operator, 1)
        check = dataclasses.replace(check, coarser=coarse, adapter=adapter)
        register(with_columns(check, COLUMNS[operator]) if operator in COLUMNS else check)


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


def with_columns(check: Check, names: tuple[str, ...]) -> Check:
    """The check with these outputs as [rows, 1]; its note says so."""

    def run(case: Case) -> dict[str, torch.Tensor]:
        found = check.run(case)
        return found | {name: found[name].reshape(-1, 1) for name in names}

    note = "; ".join(filter(None, (check.note, f"{' and '.join(names)} brought to one column")))
    return dataclasses.replace(check, run=run, note=note)


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
