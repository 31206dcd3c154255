"""`suite validate`: whether a problem folder is sound, so that a wrong kernel cannot pass and an honest one does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from atrex.errors import UserError
from atrex.problems.compare import Comparison, compare, compare_output, declared, oracle
from atrex.problems.compare_moe import live_entries
from atrex.problems.dtypes import short_name, torch_dtype
from atrex.problems.generate import roofline_entry
from atrex.problems.load import read_json
from atrex.problems.model import Problem, Shape
from atrex.problems.wrong import altered_operand, honest_output, same_tensors, wrong_outputs

Tensors = dict[str, torch.Tensor]
MIN_CORNER_CASES = 3
MIN_HELD_OUT = 3


@dataclass(frozen=True)
class Budget:
    """The largest shape that is run: bytes of its semantic reads and writes, and FLOPs."""

    bytes: float
    flops: float


# On two CPU cores, a shape at this size takes a few seconds for all its checks.
CPU_BUDGET = Budget(bytes=16 * 2**20, flops=1e10)
UNLIMITED = Budget(bytes=float("inf"), flops=float("inf"))


@dataclass(frozen=True)
class Finding:
    """One check of one shape ("" for the folder as a whole)."""

    operator: str
    shape: str
    check: str
    passed: bool
    detail: str = ""


@dataclass
class Report:
    """All findings on a folder, the shapes that were run, and those that were not with the reason."""

    operator: str
    findings: list[Finding] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]


def validate(
    problem: Problem,
    shapes: Iterable[Shape],
    device: str = "cpu",
    budget: Budget = CPU_BUDGET,
    seed: int = 1,
    progress: Callable[[str], None] = lambda shape_id: None,
) -> Report:
    """Check the folder as a whole, then each of `shapes` that the budget allows; `progress` is told each id first.

    A folder at fault is a failed finding, never an exception.
    """
    report = Report(problem.operator)
    report.findings += [Finding(problem.operator, "", *found) for found in _folder(problem)]
    for shape in shapes:
        reason = too_large(problem, shape, budget)
        if reason:
            report.not_run[shape.id] = reason
            continue
        progress(shape.id)
        report.ran.append(shape.id)
        try:
            found = list(_shape(problem, shape, device, seed))
        except Exception as error:  # noqa: BLE001 - whatever a folder's code raises is a finding about it
            found = [("runs", False, " ".join(f"{type(error).__name__}: {error}".split()))]
        report.findings += [Finding(problem.operator, shape.id, *each) for each in found]
    return report


_Found = tuple[str, bool, str]


def _folder(problem: Problem) -> Iterator[_Found]:
    ids = list(problem.shapes)
    yield "ids are 0, 1, 2, ...", ids == [str(i) for i in range(len(ids))], ", ".join(ids)
    if problem.foreign:
        return
    listed = list(problem.metadata.shapes)
    yield "metadata lists the same shapes", listed == ids, f"metadata.json: {', '.join(listed)}"
    held = list(problem.held_out)
    enough = len(held) >= MIN_HELD_OUT and held == [f"h{i}" for i in range(len(held))]
    yield f"at least {MIN_HELD_OUT} held-out shapes, ids h0, h1, ...", enough, ", ".join(held)
    stale = _stale_rooflines(problem)
    yield "roofline.json agrees with work.py and the chips", not stale, f"stale: {', '.join(stale)}" if stale else ""


def _stale_rooflines(problem: Problem) -> list[str]:
    entries = read_json(problem.folder / "roofline.json")["shapes"]
    return [sid for sid, shape in problem.shapes.items() if entries.get(sid) != roofline_entry(problem.work(shape))]


def too_large(problem: Problem, shape: Shape, budget: Budget) -> str | None:
    """Why `budget` does not allow a shape, or None."""
    try:
        work = problem.work(shape)
    except UserError:
        return None  # a folder without W and Q is run whatever it costs
    if work.total_bytes > budget.bytes:
        return f"{work.total_bytes / 2**20:.0f} MiB, budget {budget.bytes / 2**20:.0f} MiB"
    if work.total_flops > budget.flops:
        return f"{work.total_flops / 1e9:.0f} GFLOP, budget {budget.flops / 1e9:.0f} GFLOP"
    return None


def _shape(problem: Problem, shape: Shape, device: str, seed: int) -> Iterator[_Found]:
    meta = problem.metadata.shapes.get(shape.id)
    inputs = problem.make_inputs(shape, seed, device)
    other = problem.make_inputs(shape, seed + 1, device)
    again = problem.make_inputs(shape, seed, device)
    yield "a seed draws the same inputs", same_tensors(inputs, again), ""
    yield "another seed draws other inputs", not same_tensors(inputs, other), ""
    del again
    expected, base = oracle(problem, shape, inputs), declared(problem, shape, inputs)
    if not problem.foreign:
        yield from _contract(problem, shape, inputs, base)

    case = (inputs, expected, base)
    result = compare(problem, shape, *case, base)
    yield "the reference passes", result.passed, _told(result)
    honest = {name: honest_output(t, problem.metadata.compare.get(name)) for name, t in base.items()}
    result = compare(problem, shape, *case, honest)
    yield "an honest kernel passes", result.passed, _told(result)
    del honest
    found = _wrong_answers(problem, shape, other, *case)
    yield from (
        found if meta is None or not meta.trivial else _caught_in_corners(problem, shape, device, seed, list(found))
    )
    del case
    del expected, base
    if not problem.foreign:
        yield from _corners(problem, shape, device, seed)


def _wrong_answers(
    problem: Problem, shape: Shape, other: Tensors, inputs: Tensors, expected: Tensors, base: Tensors
) -> Iterator[_Found]:
    """Whether wrong outputs fail, and those of inputs of which one operand is that of `other`."""
    for name, tensor in base.items():
        live = live_entries(problem.metadata.compare.get(name), shape.init_kwargs, expected)
        for kind, make in wrong_outputs(inputs, tensor, live):
            result = compare_output(problem, shape, name, inputs, expected, base, {**base, name: make()})
            yield f"{name}: {kind} fails", not result.passed, _told(result)
    for name, tensor in inputs.items():
        changed = {**inputs, name: altered_operand(tensor, other[name])}
        result = compare(problem, shape, inputs, expected, base, declared(problem, shape, changed))
        yield f"reacts to {name}", not result.passed, _told(result)


def _caught_in_corners(problem: Problem, shape: Shape, device: str, seed: int, found: list[_Found]) -> Iterator[_Found]:
    """`found` of a trivial shape's drawn inputs, each that passed replaced by what a corner case makes of it."""
    open_ = {check for check, passed, _ in found if not passed}
    caught: dict[str, str] = {}
    others = problem.corner_cases(shape, seed + 1, device)
    for name, draw in problem.corner_cases(shape, seed, device).items():
        if open_ <= caught.keys():
            break
        inputs = draw()
        case = (inputs, oracle(problem, shape, inputs), declared(problem, shape, inputs))
        for check, passed, detail in _wrong_answers(problem, shape, others[name](), *case):
            if passed and check in open_:
                caught.setdefault(check, f"in corner case {name}: {detail}")
    for check, passed, detail in found:
        yield (check, True, caught[check]) if check in caught else (check, passed, detail)


def _contract(problem: Problem, shape: Shape, inputs: Tensors, outputs: Tensors) -> Iterator[_Found]:
    for what, tensors, listed, dtype_of in (
        ("inputs", inputs, problem.metadata.inputs, problem.input_dtype),
        ("outputs", outputs, problem.metadata.outputs, problem.output_dtype),
    ):
        want = [name for name, operand in listed.items() if name in tensors or not operand.optional]
        yield f"{what} are those of metadata", list(tensors) == want, f"{list(tensors)}, {want}"
        for name, tensor in tensors.items():
            if name in listed:
                right = tensor.dtype == torch_dtype(dtype_of(shape, name))
                yield f"{name} is {dtype_of(shape, name)}", right, short_name(tensor.dtype)
                yield f"{name} is contiguous", tensor.is_contiguous(), ""
    work = problem.work(shape)
    held = sum(t.nbytes for t in inputs.values())
    made = sum(_meant_bytes(problem, shape, name, outputs) for name in outputs)
    yield "Q reads no more than the inputs hold", work.bytes_read <= held, f"{work.bytes_read} of {held} bytes"
    detail = f"{work.bytes_written} of {made} bytes"
    if problem.metadata.mutates:
        # Of an operand changed in place, only the rows that change are written.
        made_new = sum(t.nbytes for name, t in outputs.items() if name not in problem.metadata.mutates)
        yield "Q writes the new outputs, and no more than there is", made_new <= work.bytes_written <= made, detail
    else:
        yield "Q writes what the outputs hold", work.bytes_written == made, detail


def _meant_bytes(problem: Problem, shape: Shape, name: str, outputs: Tensors) -> int:
    """Bytes of an output without those entries that mean nothing."""
    live = live_entries(problem.metadata.compare.get(name), shape.init_kwargs, outputs)
    return outputs[name].nbytes if live is None else live * outputs[name].element_size()


def _corners(problem: Problem, shape: Shape, device: str, seed: int) -> Iterator[_Found]:
    cases = problem.corner_cases(shape, seed, device)
    yield f"at least {MIN_CORNER_CASES} corner cases", len(cases) >= MIN_CORNER_CASES, ", ".join(cases)
    for name, draw in cases.items():
        inputs = draw()
        expected, base = oracle(problem, shape, inputs), declared(problem, shape, inputs)
        result = compare(problem, shape, inputs, expected, base, base)
        yield f"corner case {name}: the reference passes", result.passed, _told(result)
        zero = {key: torch.zeros_like(t) for key, t in base.items()}
        result = compare(problem, shape, inputs, expected, base, zero)
        yield f"corner case {name}: zero fails", not result.passed, _told(result)


def _told(result: Comparison) -> str:
    where = f"{result.output}{result.index}" if result.index is not None else result.output
    return f"{result.worst:.3g} of the bound at {where} ({result.detail})"
