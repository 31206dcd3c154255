"""From a recorded unit to a script that anyone can run and step through."""

from __future__ import annotations

from pathlib import Path

from atrex.errors import UserError
from atrex.evaluate.seeds import Seeds
from atrex.hardware.chip import load_chip
from atrex.problems.load import suite_hash
from atrex.scoring.records import UnitRecord
from atrex.scoring.runs import load_run

_TEMPLATE = '''\
"""{operator}/{shape} of {candidate}, case {case}: {reason}

Judged on {device} ({chip}) by atrex {version}, suite {suite_version}. Needs atrex installed; runs the candidate in this
process, so run it only for code that you would run anyway.
"""

import importlib.util

import torch

from atrex.problems.compare import compare, declared, oracle
from atrex.problems.load import load_suite

CANDIDATE = {path!r}
DEVICE = {device!r}
SUITE = {suite!r}
FP8 = {fp8!r}
OPERATOR, SHAPE, CASE, SEED = {operator!r}, {shape!r}, {case!r}, {seed!r}

torch.set_grad_enabled(False)
problem = load_suite(SUITE).problem(OPERATOR)
shape = problem.shape(SHAPE)
if CASE.startswith(("seed", "timed")):
    inputs = problem.make_inputs(shape, SEED, DEVICE, FP8)
else:
    inputs = problem.corner_cases(shape, SEED, DEVICE, FP8)[CASE]()

spec = importlib.util.spec_from_file_location("candidate", CANDIDATE)
candidate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(candidate)
model = candidate.Model(**shape.init_kwargs).to(DEVICE).eval()

expected, reference = oracle(problem, shape, inputs, FP8), declared(problem, shape, inputs, FP8)
outputs = model(*(t.clone() for t in inputs.values()))
outputs = {{"out": outputs}} if isinstance(outputs, torch.Tensor) else dict(outputs)
result = compare(problem, shape, inputs, expected, reference, outputs)
print("passed" if result.passed else "failed", result)
'''


def write_repro(run: Path, unit: str, out: Path | None = None, candidate: str | None = None) -> Path:
    """Write the script for `unit` ("operator/shape") of a closed run and return its path. Raises UserError."""
    loaded = load_run(run)
    record = _find(loaded.records, unit, candidate, run)
    secret = loaded.run.get("seeds")
    if not secret:
        raise UserError(
            f"{run / 'run.json'}: the run is not closed, so its seeds are still secret; finish it with --resume"
        )
    suite = None if loaded.run.get("suite") == "shipped" else loaded.run.get("suite")
    if suite_hash(suite) != loaded.run.get("suite_hash"):
        raise UserError(f"{run / 'run.json'}: suite_hash is not that of the suite here; the inputs would differ")
    case = record.correctness.where.case if record.correctness and record.correctness.where else "seed0"
    seeds = Seeds(bytes.fromhex(secret))
    fp8 = "e4m3fn" if record.chip == "cpu" else load_chip(record.chip).fp8 or "e4m3fn"
    name = f"{record.operator}/{record.shape}"
    seed = seeds.seed(name, int(case.removeprefix("seed")) if case.startswith("seed") else "corner")
    text = _TEMPLATE.format(
        operator=record.operator, shape=record.shape, candidate=record.candidate, case=case,
        reason=record.verdict.reason or record.verdict.status.value, device=record.device, chip=record.chip,
        version=loaded.run.get("atrex"), suite_version=loaded.run.get("suite_version"),
        path=str(Path(record.candidate).resolve()), suite=suite, fp8=fp8, seed=seed,
    )  # fmt: skip
    path = out or Path(f"repro_{record.operator}_{record.shape}.py")
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def _find(records: list[UnitRecord], unit: str, candidate: str | None, run: Path) -> UnitRecord:
    named = [r for r in records if f"{r.operator}/{r.shape}" == unit]
    if candidate is not None:
        named = [r for r in named if r.candidate == candidate]
    if not named:
        raise UserError(
            f"{run}: no unit {unit!r}; expected operator/shape of a recorded unit, such as "
            f"{records[0].operator + '/' + records[0].shape if records else 'rms_norm/0'}"
        )
    if len(named) > 1:
        raise UserError(f"{run}: {len(named)} candidates have a unit {unit}; say which with --candidate")
    return named[0]
