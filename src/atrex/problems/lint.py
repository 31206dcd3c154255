"""`suite validate`: whether a problem folder is sound, so that a wrong kernel cannot pass and an honest one does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from atrex.errors import UserError
from atrex.problems.compare import Comparison, compare, compare_output, declared, oracle, own_oracle
from atrex.problems.compare_moe import live_entries
from atrex.problems.cost import Cost, Meter, out_of_memory, release
from atrex.problems.dtypes import short_name, torch_dtype
from atrex.problems.generate import roofline_entry
from atrex.problems.load import REQUIRED, read_json
from atrex.problems.materialize import seeded
from atrex.problems.model import Problem, Shape
from atrex.problems.under_roofline import under_roofline
from atrex.problems.wrong import altered_operand, honest_output, same_tensors, wrong_outputs

Tensors = dict[str, torch.Tensor]
OURS = ("work.py", "held_out.json")  # which folders made by others need not have
OPTIONAL = ("mutants.py", "__init__.py")
MIN_CORNER_CASES = 3
MIN_HELD_OUT = 3


@dataclass(frozen=True)
class Budget:
    """The largest shape that is run: bytes of its semantic reads and writes, and FLOPs."""

    bytes: float
    flops: float


# On two CPU cores, a shape at this size takes a few seconds for all its checks.
CPU_BUDGET = Budget(bytes=16 * 2**20, flops=1e10)
# What a judge's device must have room and time for: the inputs and one run of the reference on an 80 GB card.
REFERENCE_BYTES = 80 * 2**30
REFERENCE_SECONDS = 10.0
TOO_LARGE = "too large"
RUNS = "runs"
FITS = "fits into the device's memory"
SMALL_ENOUGH = f"inputs and reference take at most {REFERENCE_BYTES // 2**30} GiB"
FAST_ENOUGH = f"inputs and reference take at most {REFERENCE_SECONDS:.0f} s"
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
    """All findings on a folder, what each shape that ran cost, and the shapes that did not run with the reason."""

    operator: str
    findings: list[Finding] = field(default_factory=list)
    ran: dict[str, Cost] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]


@dataclass(frozen=True)
class ShapeReport:
    """The findings on one shape and what it cost. `starved`: memory ran out, so the checks are not complete."""

    findings: list[Finding]
    cost: Cost
    starved: bool = False


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
    report = Report(problem.operator, check_folder(problem))
    for shape in shapes:
        reason = too_large(problem, shape, budget)
        if reason:
            report.not_run[shape.id] = reason
            continue
        progress(shape.id)
        checked = check_shape(problem, shape, device, seed)
        report.ran[shape.id] = checked.cost
        report.findings += checked.findings
    return report


def check_folder(problem: Problem) -> list[Finding]:
    """What can be said of a folder without running it."""
    return [Finding(problem.operator, "", *found) for found in _folder(problem)]


def check_shape(problem: Problem, shape: Shape, device: str, seed: int) -> ShapeReport:
    """Every check of one shape. Whatever the folder's code raises, running out of memory included, is a finding."""
    found: list[_Found] = []
    reference = Meter(device)
    starved = False
    with Meter(device) as whole:
        try:
            for each in _shape(problem, shape, device, seed, reference):
                found.append(each)
        except Exception as error:  # noqa: BLE001 - whatever a folder's code raises is a finding about it
            starved = out_of_memory(error)
            found.append((FITS if starved else RUNS, False, " ".join(f"{type(error).__name__}: {error}".split())))
    release(device)
    peaks = [meter.peak_bytes for meter in (whole, reference) if meter.peak_bytes is not None]
    cost = Cost(whole.seconds, max(peaks) if peaks else None, reference.seconds or None, reference.peak_bytes)
    found += _affordable(cost)
    return ShapeReport([Finding(problem.operator, shape.id, *each) for each in found], cost, starved)


_Found = tuple[str, bool, str]


def _folder(problem: Problem) -> Iterator[_Found]:
    ids = list(problem.shapes)
    yield "ids are 0, 1, 2, ...", ids == [str(i) for i in range(len(ids))], ", ".join(ids)
    yield from _times(problem)
    faults = _files(problem)
    yield "holds the files of a problem folder and no others", not faults, "; ".join(faults)
    if problem.foreign:
        return
    listed = list(problem.metadata.shapes)
    yield "metadata lists the same shapes", listed == ids, f"metadata.json: {', '.join(listed)}"
    held = list(problem.held_out)
    enough = len(held) >= MIN_HELD_OUT and held == [f"h{i}" for i in range(len(held))]
    yield f"at least {MIN_HELD_OUT} held-out shapes, ids h0, h1, ...", enough, ", ".join(held)
    stale = _stale_rooflines(problem)
    yield "roofline.json agrees with work.py and the chips", not stale, f"stale: {', '.join(stale)}" if stale else ""


def _files(problem: Problem) -> list[str]:
    found = {path.name for path in problem.folder.iterdir() if path.name != "__pycache__"}
    needed = REQUIRED if problem.foreign else (*REQUIRED, *OURS)
    missing = [f"{name}: missing" for name in needed if name not in found]
    other = sorted(found - {*REQUIRED, *OURS, *OPTIONAL})
    allowed = ", ".join((*REQUIRED, *OURS, *OPTIONAL))
    return missing + [f"{name}: expected no file but {allowed}" for name in other]


def _times(problem: Problem) -> Iterator[_Found]:
    check = "measured times are over the roofline, or metadata says why not"
    try:
        found = [each for each in under_roofline(problem) if not each.explained]
    except UserError as error:
        yield check, False, str(error)
        return
    for each in found:
        yield check, False, each.told
    if not found:
        yield check, True, ""


def _affordable(cost: Cost) -> Iterator[_Found]:
    """On a GPU alone: what a CPU takes says nothing about the machine that the shapes are meant for."""
    if cost.reference_bytes is None or cost.reference_seconds is None:
        return
    detail = f"{cost.reference_bytes / 2**30:.1f} GiB"
    yield SMALL_ENOUGH, cost.reference_bytes <= REFERENCE_BYTES, detail
    yield FAST_ENOUGH, cost.reference_seconds <= REFERENCE_SECONDS, f"{cost.reference_seconds:.2f} s"


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
        return f"{TOO_LARGE}: {work.total_bytes / 2**20:.0f} MiB, budget {budget.bytes / 2**20:.0f} MiB"
    if work.total_flops > budget.flops:
        return f"{TOO_LARGE}: {work.total_flops / 1e9:.0f} GFLOP, budget {budget.flops / 1e9:.0f} GFLOP"
    return None


def _shape(problem: Problem, shape: Shape, device: str, seed: int, reference: Meter) -> Iterator[_Found]:
    meta = problem.metadata.shapes.get(shape.id)
    with reference:
        inputs = problem.make_inputs(shape, seed, device)
        base = declared(problem, shape, inputs)
    again = problem.make_inputs(shape, seed, device)
    yield "a seed draws the same inputs", same_tensors(inputs, again), ""
    del again
    other = problem.make_inputs(shape, seed + 1, device)
    yield "another seed draws other inputs", not same_tensors(inputs, other), ""
    expected = base if own_oracle(problem) else oracle(problem, shape, inputs)
    if not problem.foreign:
        yield from _contract(problem, shape, inputs, base)

    case = (inputs, expected, base)
    result = compare(problem, shape, *case, base)
    yield "the reference passes", result.passed, _told(result)
    with seeded(seed, torch.device(device)):
        honest = {
            name: honest_output(t, problem.metadata.compare.get(name), None if expected is base else expected[name])
            for name, t in base.items()
        }
    result = compare(problem, shape, *case, honest)
    yield "an honest kernel passes", result.passed, _told(result)
    del honest
    found = _wrong_answers(problem, shape, other, *case)
    yield from (
        found if meta is None or not meta.trivial else _caught_in_corners(problem, shape, device, seed, list(found))
    )
    del case, expected, base, inputs, other
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
        detail = f"metadata.json: {what}: {', '.join(want)}; the code gives {', '.join(tensors)}"
        yield f"{what} are those of metadata", list(tensors) == want, detail
        for name, tensor in tensors.items():
            if name in listed:
                right = tensor.dtype == torch_dtype(dtype_of(shape, name))
                detail = f"metadata.json: {what}.{name}.dtype: the code gives {short_name(tensor.dtype)}"
                yield f"{name} is {dtype_of(shape, name)}", right, detail
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
