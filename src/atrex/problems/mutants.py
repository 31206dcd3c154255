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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch

from atrex.errors import UserError
from atrex.problems.compare import compare, declared, oracle, own_oracle
from atrex.problems.compare_moe import live_entries
from atrex.problems.compiled import COMPILED, Compiled, DidNotCompile
from atrex.problems.cost import Meter, out_of_memory, release, usable
from atrex.problems.dtypes import short_name
from atrex.problems.lint import Budget, too_large
from atrex.problems.model import Problem, Shape, named_outputs
from atrex.problems.modules import load_module
from atrex.problems.wrong import altered_operand, wrong_outputs

Tensors = dict[str, torch.Tensor]
_Run = Callable[[Shape, Tensors], Tensors]


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant on one shape: the case that it failed first, None if it passed all.

    `not_run` says why it is neither: memory ran out, or a compiler could not take it.
    """

    name: str
    wrong: bool
    case: str | None = None
    not_run: str | None = None


@dataclass
class Row:
    """One mutant over the shapes that ran: `seen` is shape id -> the first case that it failed, or None.

    `not_run` is shape id -> why the mutant could not be run there, although the shape was.
    """

    name: str
    wrong: bool
    seen: dict[str, str | None] = field(default_factory=dict)
    reason: str | None = None
    """Why a survivor is none to worry about, where the folder says so."""
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """A wrong mutant was killed on every shape or is explained; a right one passed everywhere."""
        if self.wrong:
            return self.reason is not None or all(case is not None for case in self.seen.values())
        return all(case is None for case in self.seen.values())

    def add(self, shape_id: str, outcome: Outcome) -> None:
        if outcome.not_run is None:
            self.seen[shape_id] = outcome.case
        else:
            self.not_run[shape_id] = outcome.not_run


@dataclass
class KillTable:
    """`rows` by mutant; by shape id, `failed` says why a shape that was tried could not be, `not_run` why others were
    left out.
    """

    operator: str
    rows: list[Row] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def unsound(self) -> list[Row]:
        return [row for row in self.rows if not row.sound]

    def add(self, shape_id: str, found: ShapeOutcomes, survivors: Mapping[str, str]) -> None:
        """Take in what `check_mutants` found on one shape; `survivors` are the explained ones."""
        if found.error:
            self.failed[shape_id] = found.error
        rows = {row.name: row for row in self.rows}
        for outcome in found.outcomes:
            row = rows.get(outcome.name)
            if row is None:
                row = rows[outcome.name] = Row(outcome.name, outcome.wrong, reason=survivors.get(outcome.name))
                self.rows.append(row)
            row.add(shape_id, outcome)


@dataclass(frozen=True)
class ShapeOutcomes:
    """All mutants on one shape; with an `error`, the folder itself could not be run. `starved`: memory ran out."""

    outcomes: list[Outcome]
    seconds: float = 0.0
    error: str | None = None
    starved: bool = False


def kill_table(
    problem: Problem, shapes: Iterable[Shape], device: str, budget: Budget, seed: int = 1,
    progress: Callable[[str], None] = lambda shape_id: None,
) -> KillTable:  # fmt: skip
    """Run every mutant on every shape that the budget allows: the drawn inputs first, then corner cases until it fails.

    Raises UserError for a mutants.py whose replacement does not occur in reference.py.
    """
    table = KillTable(problem.operator)
    survivors = explained(problem)
    for shape in shapes:
        reason = too_large(problem, shape, budget)
        if reason:
            table.not_run[shape.id] = reason
            continue
        progress(shape.id)
        table.add(shape.id, check_mutants(problem, shape, device, seed), survivors)
    return table


def explained(problem: Problem) -> Mapping[str, str]:
    """Survivors of which the folder says why they are none to worry about. Raises UserError as `kill_table` does."""
    return _own(problem).survivors


def check_mutants(
    problem: Problem, shape: Shape, device: str, seed: int, compiled: Container[tuple[str, str]] = ()
) -> ShapeOutcomes:
    """Every mutant on one shape, and the compiled reference where (operator, shape id) is in `compiled`.

    Whatever the folder's code raises is the result's `error`. Raises UserError as `kill_table` does.
    """
    own = _own(problem)
    with Meter(device) as meter:
        found, error, starved = _Shape(problem, shape, device, seed, own), None, False
        try:
            for case in _cases(problem, shape, device, seed):
                found.run(case)
                del case
            if (problem.operator, shape.id) in compiled:
                found.run_compiled()
        except Exception as raised:  # noqa: BLE001 - whatever a folder's code raises is a finding about it
            error, starved = _line(raised), out_of_memory(raised)
    release(device)
    return ShapeOutcomes(found.outcomes(), meter.seconds, error, starved or found.starved)


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
        base = declared(problem, shape, inputs)
        expected = base if own_oracle(problem) else oracle(problem, shape, inputs)
        return _Case(name, inputs, other, expected, base)

    yield case("seed", problem.make_inputs(shape, seed, device), problem.make_inputs(shape, seed + 1, device))
    others = problem.corner_cases(shape, seed + 1, device)
    for name, draw in problem.corner_cases(shape, seed, device).items():
        yield case(name, draw(), others[name]())


class _Shape:
    """The mutants of one shape, case after case: a wrong one until it fails, a right one on all of them."""

    def __init__(self, problem: Problem, shape: Shape, device: str, seed: int, own: _Own) -> None:
        self.problem, self.shape, self.device, self.seed, self.own = problem, shape, device, seed, own
        self.names: dict[str, bool] = {}
        self.failed: dict[str, str] = {}
        self.not_run: dict[str, str] = {}
        self.starved = False

    def run(self, case: _Case) -> None:
        for name, wrong, make in _candidates(self.problem, self.shape, case, self.own):
            self.names.setdefault(name, wrong)
            if name not in self.failed and name not in self.not_run:
                self._judge(name, case, make)

    def run_compiled(self) -> None:
        name = COMPILED
        self.names[name] = False
        model = Compiled(self.problem.reference(self.shape))
        for case in _cases(self.problem, self.shape, self.device, self.seed):
            self._judge(name, case, lambda case=case: _run(self.problem, model, case.inputs))
            if name in self.failed or name in self.not_run:
                break

    def _judge(self, name: str, case: _Case, make: Callable[[], Tensors]) -> None:
        try:
            passed = compare(self.problem, self.shape, case.inputs, case.oracle, case.declared, make()).passed
        except DidNotCompile as error:
            self.not_run[name] = str(error)
            return
        except Exception as error:  # noqa: BLE001 - a kernel that raises has failed
            if out_of_memory(error):
                self.not_run[name], self.starved = "out of memory", True
                return
            if not usable(self.device):
                raise RuntimeError(f"mutant {name!r} lost the device: {error}") from error
            passed = False
        if not passed:
            self.failed[name] = case.name

    def outcomes(self) -> list[Outcome]:
        return [Outcome(n, wrong, self.failed.get(n), self.not_run.get(n)) for n, wrong in self.names.items()]


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


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
