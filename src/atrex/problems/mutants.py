"""Mutation testing of a problem: plausible wrong kernels must fail, right ones written another way must pass.

General mutants come from outputs and operands; a folder adds its own in `mutants.py` (evaluator-only):

    WRONG = {"mask off by one": ("<= position", "< position"), ...}   # text of reference.py -> what replaces it
    RIGHT = {"by torch": model_factory, ...}                          # name -> function(**init_kwargs) -> module
    LOW_PRECISION = torch.float16                             # where it matters: the dtype of a too narrow accumulator
    SURVIVORS = {"mask off by one": "why no shape tells it apart"}    # argued, shown, not counted as a hole

Mutants are trusted code and run in this process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch

from atrex.errors import UserError
from atrex.problems.compare import compare, declared, oracle
from atrex.problems.compare_moe import live_entries
from atrex.problems.dtypes import short_name
from atrex.problems.lint import Budget, too_large
from atrex.problems.model import Problem, Shape, named_outputs
from atrex.problems.modules import load_module
from atrex.problems.wrong import altered_operand, wrong_outputs

Tensors = dict[str, torch.Tensor]
_Run = Callable[[Shape, Tensors], Tensors]


@dataclass
class Row:
    """One mutant over the shapes that ran: `seen` is shape id -> the first case that it failed, or None."""

    name: str
    wrong: bool
    seen: dict[str, str | None] = field(default_factory=dict)
    reason: str | None = None
    """Why a survivor is none to worry about, where the folder says so."""

    @property
    def sound(self) -> bool:
        """A wrong mutant was killed on every shape or is explained; a right one passed everywhere."""
        if self.wrong:
            return self.reason is not None or all(case is not None for case in self.seen.values())
        return all(case is None for case in self.seen.values())


@dataclass
class KillTable:
    """`rows` by mutant; `not_run`: shape id -> why it was left out."""

    operator: str
    rows: list[Row] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def unsound(self) -> list[Row]:
        return [row for row in self.rows if not row.sound]


def kill_table(
    problem: Problem, shapes: Iterable[Shape], device: str, budget: Budget, seed: int = 1,
    progress: Callable[[str], None] = lambda shape_id: None,
) -> KillTable:  # fmt: skip
    """Run every mutant on every shape that the budget allows: the drawn inputs first, then corner cases until it fails.

    Raises UserError for a mutants.py whose replacement does not occur in reference.py.
    """
    table = KillTable(problem.operator)
    own = _own(problem)
    rows: dict[str, Row] = {}
    for shape in shapes:
        reason = too_large(problem, shape, budget)
        if reason:
            table.not_run[shape.id] = reason
            continue
        progress(shape.id)
        for name, wrong, case in _shape(problem, shape, device, seed, own):
            row = rows.setdefault(name, Row(name, wrong, reason=own.survivors.get(name)))
            row.seen[shape.id] = case
    table.rows = list(rows.values())
    return table


@dataclass
class _Own:
    wrong: Mapping[str, Callable[..., torch.nn.Module]]
    right: Mapping[str, Callable[..., torch.nn.Module]]
    survivors: Mapping[str, str]


def _own(problem: Problem) -> _Own:
    path = problem.folder / "mutants.py"
    if not path.exists():
        return _Own({}, {}, {})
    module = load_module(path)
    source = (problem.folder / "reference.py").read_text()
    wrong = {}
    for name, (old, new) in getattr(module, "WRONG", {}).items():
        if old not in source:
            raise UserError(f"{problem.operator}/mutants.py: WRONG[{name!r}]: {old!r} is not in reference.py")
        wrong[name] = _module(f"{problem.operator}_{name}", source.replace(old, new))
    narrow = getattr(module, "LOW_PRECISION", None)
    factories = {name: found.Model for name, found in wrong.items()}
    if narrow is not None:
        model = load_module(problem.folder / "reference.py").Model
        factories[f"accumulated in {short_name(narrow)}"] = _low_precision(model, narrow)
    return _Own(factories, getattr(module, "RIGHT", {}), getattr(module, "SURVIVORS", {}))


def _module(name: str, source: str) -> ModuleType:
    key = f"atrex_mutant_{hashlib.sha256((name + source).encode()).hexdigest()[:16]}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reference.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(key, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return module


@dataclass
class _Case:
    """Inputs, what they must give, and the inputs of another seed."""

    name: str
    inputs: Tensors
    other: Tensors
    oracle: Tensors
    declared: Tensors


def _cases(problem: Problem, shape: Shape, device: str, seed: int) -> Iterator[_Case]:
    def case(name: str, inputs: Tensors, other: Tensors) -> _Case:
        return _Case(name, inputs, other, oracle(problem, shape, inputs), declared(problem, shape, inputs))

    yield case("seed", problem.make_inputs(shape, seed, device), problem.make_inputs(shape, seed + 1, device))
    others = problem.corner_cases(shape, seed + 1, device)
    for name, draw in problem.corner_cases(shape, seed, device).items():
        yield case(name, draw(), others[name]())


def _shape(problem: Problem, shape: Shape, device: str, seed: int, own: _Own) -> Iterator[tuple[str, bool, str | None]]:
    failed: dict[str, str] = {}
    names: dict[str, bool] = {}
    for case in _cases(problem, shape, device, seed):
        for name, wrong, make in _candidates(problem, shape, case, own):
            names.setdefault(name, wrong)
            if name in failed:
                continue
            if not _passes(problem, shape, case, make):
                failed[name] = case.name
    yield from ((name, wrong, failed.get(name)) for name, wrong in names.items())


def _passes(problem: Problem, shape: Shape, case: _Case, make: Callable[[], Tensors]) -> bool:
    try:
        outputs = make()
    except Exception:  # noqa: BLE001 - a kernel that raises has failed
        return False
    return compare(problem, shape, case.inputs, case.oracle, case.declared, outputs).passed


def _candidates(
    problem: Problem, shape: Shape, case: _Case, own: _Own
) -> Iterator[tuple[str, bool, Callable[[], Tensors]]]:
    for output, tensor in case.declared.items():
        live = live_entries(problem.metadata.compare.get(output), shape.init_kwargs, case.oracle)
        for kind, make in wrong_outputs(case.inputs, tensor, live):
            yield f"{output}: {kind}", True, lambda make=make, output=output: {**case.declared, output: make()}
    for operand, tensor in case.inputs.items():
        changed = {**case.inputs, operand: altered_operand(tensor, case.other[operand])}
        yield f"{operand} ignored", True, lambda changed=changed: declared(problem, shape, changed)
    if all(t.shape == case.other[n].shape for n, t in case.inputs.items()):
        yield "output of the call before", True, lambda: declared(problem, shape, case.other)
    for name, factory in own.wrong.items():
        yield name, True, lambda factory=factory: _run(problem, factory(**shape.init_kwargs), case.inputs)
    yield "float64 throughout", False, lambda: {n: t.to(case.declared[n].dtype) for n, t in case.oracle.items()}
    for name, factory in own.right.items():
        yield name, False, lambda factory=factory: _run(problem, factory(**shape.init_kwargs), case.inputs)


def _run(problem: Problem, model: torch.nn.Module, inputs: Tensors) -> Tensors:
    device = next(iter(inputs.values())).device
    with torch.no_grad():
        return named_outputs(model.to(device)(**inputs), list(problem.metadata.outputs))


def _low_precision(model: Callable[..., torch.nn.Module], dtype: torch.dtype) -> Callable[..., torch.nn.Module]:
    """The reference with every accumulator in `dtype` where it asks for at least float32."""

    class Low(torch.nn.Module):
        def __init__(self, **kwargs):
            super().__init__()
            self.model = model(**kwargs)

        def forward(self, *operands, **named):
            with mock.patch.object(torch, "promote_types", lambda a, b: dtype):
                return self.model(*operands, **named)

    return Low
