"""The correctness gate: seeds and corner cases, compared by the judge with expected outputs that only it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from atrex.evaluate.answers import Forwarded
from atrex.evaluate.bindings import Bindings, Tensors
from atrex.evaluate.failures import UnitError, UnitFailure
from atrex.evaluate.seeds import Seeds
from atrex.problems.compare import Comparison, compare, declared, oracle, own_oracle, published_check
from atrex.problems.dtypes import Fp8Encoding
from atrex.problems.model import Problem, Shape
from atrex.scoring.records import Correctness, Stage, Where


@dataclass
class Case:
    """One set of inputs and what it must give: `oracle` in float64 where feasible, `declared` at declared precision."""

    name: str
    inputs: Tensors
    oracle: Tensors
    declared: Tensors


def expected(problem: Problem, shape: Shape, name: str, inputs: Tensors, fp8: Fp8Encoding) -> Case:
    """Run the reference both ways. Raises UnitError `folder` when it cannot."""
    try:
        base = declared(problem, shape, inputs, fp8)
        return Case(name, inputs, base if own_oracle(problem) else oracle(problem, shape, inputs, fp8), base)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever else a folder's reference raises is the folder's fault
        raise UnitError(
            "folder", f"reference of {problem.operator} on {name}: {type(error).__name__}: {error}"
        ) from error


def cases(
    problem: Problem, shape: Shape, seeds: Seeds, count: int, device: torch.device, fp8: Fp8Encoding, purpose: str = ""
) -> Iterator[tuple[str, Callable[[], Tensors]]]:
    """Names and makers of the inputs of every case: `count` seeds, then the corner cases. A `purpose` has its own."""
    unit = f"{problem.operator}/{shape.id}/{purpose}" if purpose else f"{problem.operator}/{shape.id}"
    for i in range(count):
        yield f"seed{i}", lambda i=i: problem.make_inputs(shape, seeds.seed(unit, i), device, fp8)
    try:
        found = problem.corner_cases(shape, seeds.seed(unit, "corner"), device, fp8)
    except Exception as error:  # noqa: BLE001
        raise UnitError("folder", f"corner_cases of {problem.operator}: {type(error).__name__}: {error}") from error
    yield from found.items()


def check_interface(answer: Forwarded, case: Case, problem: Problem) -> None:
    """Exact structure, names, shapes, dtypes, layout and device of what came back. Raises UnitFailure `interface`.

    One output is a tensor, or a dict that names it.
    """
    returned = [name for name in case.declared if name not in problem.metadata.mutates]
    structures = (("none",), ("tensor", "dict"), ("dict",))[min(len(returned), 2)]
    if answer.structure not in structures and not problem.foreign:
        raise _interface(case.name, f"forward returned {answer.structure}, expected {structures[0]}")
    names = [output.name for output in answer.outputs]
    if sorted(names) != sorted(returned):
        raise _interface(case.name, f"outputs are {names}, expected {returned}")
    for output in answer.outputs:
        want = case.declared[output.name]
        dtype = str(want.dtype).removeprefix("torch.")
        faults = []
        if output.shape != list(want.shape):
            faults.append(f"shape {output.shape}, expected {list(want.shape)}")
        if output.dtype != dtype:
            faults.append(f"dtype {output.dtype}, expected {dtype}")
        if not output.contiguous:
            faults.append("not contiguous")
        if output.device.split(":")[0] != want.device.type:
            faults.append(f"on {output.device}, expected {want.device}")
        shared = [name for name in output.overlaps if name not in problem.metadata.mutates]
        if shared:
            faults.append(f"shares memory with operand {', '.join(shared)}")
        if faults:
            raise _interface(case.name, f"output {output.name!r}: {'; '.join(faults)}")


def check_answer(answer: Forwarded, case: Case, bindings: Bindings, problem: Problem, place: int = 0) -> None:
    """Everything about one forward but its values. Raises UnitFailure."""
    check_interface(answer, case, problem)
    check_operands(case.name, case.inputs, bindings, problem, place)


def check_operands(name: str, inputs: Tensors, bindings: Bindings, problem: Problem, place: int = 0) -> None:
    """A forward leaves operands as they are that metadata does not declare. Raises UnitFailure `interface`."""
    touched = bindings.mutated(inputs, problem.metadata.mutates, place)
    if touched:
        raise _interface(name, f"forward changed operand {', '.join(touched)}, which is not declared")


def _interface(case: str, what: str) -> UnitFailure:
    return UnitFailure(Stage.RUNTIME, "interface", f"{case}: {what}")


@dataclass
class Tally:
    """What the cases of one unit have shown so far."""

    cases: dict[str, bool] = field(default_factory=dict)
    worst: Comparison | None = None
    worst_case: str = ""
    published: bool | None = None

    def add(self, problem: Problem, shape: Shape, case: Case, outputs: Tensors, seeded: bool = True) -> bool:
        """Compare one case's outputs; whether it passed."""
        result = compare(problem, shape, case.inputs, case.oracle, case.declared, outputs)
        self.cases[case.name] = result.passed
        if self.worst is None or (result.worst or 0) > (self.worst.worst or 0) or not result.passed:
            self.worst, self.worst_case = result, case.name
        if seeded:
            self.published = self.published is not False and published_check(case.declared, outputs)
        return result.passed

    def fail(self, case: str) -> None:
        self.cases[case] = False

    def record(self, passed: bool) -> Correctness:
        where = None
        if self.worst is not None and self.worst.output is not None:
            where = Where(
                case=self.worst_case, output=self.worst.output, index=self.worst.index, expected=self.worst.expected,
                got=self.worst.got, error=self.worst.error, bound=self.worst.bound, detail=self.worst.detail,
            )  # fmt: skip
        worst = self.worst.worst if self.worst is not None else None
        return Correctness(passed=passed, cases=self.cases, worst=worst, where=where, published_check=self.published)

    def mismatch(self) -> UnitFailure:
        """The failure that the worst comparison stands for."""
        result = self.worst
        at = f"[{', '.join(map(str, result.index))}]" if result.index is not None else ""
        detail = f": {result.detail}" if result.detail else ""
        reason = f"{self.worst_case}: {result.output}{at} is {result.got}, expected {result.expected}{detail}"
        return UnitFailure(Stage.RUNTIME, "numeric_mismatch", reason)
