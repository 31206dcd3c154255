"""What a check is, and the list of all of them. A check is one function in one of the modules beside this one."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from atrex.problems.model import Problem, Shape

PRODUCTION = "production kernel"
OTHER = "other kernel"
PYTORCH = "PyTorch"
KINDS = (PRODUCTION, OTHER, PYTORCH)

# What is measured against: distribution -> how to install it.
INSTALL = {
    "torch": "pip install torch",
    "transformers": "pip install transformers==5.17.0",
    "torchao": "pip install torchao",
    "fla-core": "pip install fla-core==0.5.2",
    "liger-kernel": "pip install liger-kernel==0.8.5",
    "vllm": "pip install vllm==0.20.2",
    "sglang": "pip install sglang==0.5.12",
    "sglang-kernel": "pip install sglang-kernel==0.4.2.post2",
    "flashinfer-python": "pip install flashinfer-python==0.7.4",
    "quack-kernels": "pip install quack-kernels==0.6.5",
    "amd-aiter": "pip install amd-aiter",
}

MODULES = (
    "torch_checks",
    "transformers_norms",
    "transformers_attention",
    "transformers_moe",
    "transformers_delta",
    "torchao_checks",
    "fla_checks",
    "library_checks",
    "vllm_ops",
    "vllm_triton",
    "sglang_ops",
    "sglang_triton",
)


class Unsupported(Exception):
    """The implementation does not cover this case; the message says what it lacks."""


class NotInstalled(Exception):
    """A library, or the part of it that a check calls, is not here."""


@dataclass(frozen=True)
class Case:
    """One set of inputs, the check's to change. `name` is the shape's id, or "id/corner case"."""

    problem: Problem
    shape: Shape
    name: str
    inputs: dict[str, torch.Tensor]

    @property
    def init(self) -> Mapping[str, Any]:
        return self.shape.init_kwargs

    @property
    def kwargs(self) -> Mapping[str, Any]:
        return self.shape.input_kwargs

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device


Run = Callable[[Case], Any]


@dataclass(frozen=True)
class Check:
    """An implementation of `operator` by others: `run` takes a case and returns the operator's outputs.

    `differs` names corner cases in which the implementation is known to mean something else, each with the reason:
    there a difference is recorded and does not count. `coarser` is the reason why it rounds where the operator does
    not: a difference as small as that rounding does not count in any case. `exact` gives the operands before they were
    rounded to the operator's dtypes, for an implementation that starts from what they were made of: the oracle then
    starts there too. `adapter` is counted up when `run` is mended: what an older one found is to be found again.
    """

    operator: str
    name: str
    library: str
    kind: str
    devices: tuple[str, ...]
    run: Run
    note: str | None = None
    differs: Mapping[str, str] = field(default_factory=dict)
    exact: Callable[[Case], dict[str, torch.Tensor]] | None = None
    coarser: str | None = None
    adapter: int = 1


_CHECKS: list[Check] = []


def register(check: Check) -> None:
    """Add a check. Raises ValueError for one of an unknown kind or library."""
    if check.kind not in KINDS or check.library not in INSTALL:
        raise ValueError(
            f"{check.name}: kind {check.kind!r} of library {check.library!r}: expected one of {KINDS} and of "
            f"{list(INSTALL)}"
        )
    _CHECKS.append(check)


def check(
    operator: str,
    name: str,
    library: str,
    kind: str,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    note: str | None = None,
    differs: Mapping[str, str] | None = None,
    exact: Callable[[Case], dict[str, torch.Tensor]] | None = None,
    coarser: str | None = None,
) -> Callable[[Run], Run]:
    """Register the decorated function as a check of `operator`; one function may check several."""

    def decorate(run: Run) -> Run:
        register(Check(operator, name, library, kind, devices, run, note, differs or {}, exact, coarser))
        return run

    return decorate


def all_checks() -> list[Check]:
    """Every check, in the order of the modules. Importing them needs none of the libraries."""
    for module in MODULES:
        importlib.import_module(f"benchmarks.references.{module}")
    return list(_CHECKS)


def version(library: str) -> str | None:
    """The installed version of a distribution, None when it is not here."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None
