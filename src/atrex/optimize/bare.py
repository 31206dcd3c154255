"""A campaign for a kernel that belongs to no suite: a problem folder from its reference, W and Q given or counted."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from atrex.errors import UserError
from atrex.files import read_source
from atrex.optimize.count import count
from atrex.optimize.model import BASELINE
from atrex.optimize.setup import Wish, begin
from atrex.optimize.store import PROBLEM, Campaign
from atrex.problems.compare import compare, declared, oracle
from atrex.problems.dtypes import NAMES, short_name
from atrex.problems.generate import generate_roofline, roofline_entry, write_roofline
from atrex.problems.load import load_problem
from atrex.problems.materialize import draw
from atrex.problems.modules import load_module
from atrex.problems.wrong import same_tensors

FORMS = "make_inputs(**input_kwargs) with SHAPES, or get_inputs() with get_init_inputs()"
_SEED = 1


@dataclass(frozen=True)
class Bare:
    """What is given instead of an operator. `reference` defines Model and its inputs, `work` the function work."""

    kernel: Path
    reference: Path
    work: Path | None = None


def begin_bare(path: Path, wish: Wish, bare: Bare, told: Callable[[str], None] = lambda line: None) -> Campaign:
    """Make the problem folder below the campaign's folder, and the campaign, with the kernel handed in as its first.

    Without `wish.operator` the operator is named after the kernel's file. Raises UserError, and leaves nothing.
    """
    operator = wish.operator or re.sub(r"\W+", "_", bare.kernel.stem.lower()).strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", operator):
        raise UserError(f"--problem {operator!r}: expected lower-case letters, digits and _, such as rms_norm")
    source = read_source(bare.kernel)
    if path.exists() and any(path.iterdir()):
        raise UserError(f"{path}: not empty; a campaign needs a folder of its own")
    made = not path.exists()
    folder = path / PROBLEM / operator
    device = "cpu" if wish.chip else wish.device
    try:
        write_problem(folder, operator, bare, device, told)
        campaign = begin(path, replace(wish, operator=operator, suite=folder))
    except BaseException:
        shutil.rmtree(path if made else path / PROBLEM, ignore_errors=True)
        raise
    campaign.put(BASELINE, "candidate", source)
    return campaign


def write_problem(
    folder: Path, operator: str, bare: Bare, device: str, told: Callable[[str], None] = lambda line: None
) -> None:
    """A problem folder: the reference's own text, its shapes, how outputs are compared, and W and Q.

    Without `bare.work` these are counted on `device`, from one run of each shape, and roofline.json says `estimated`.
    Where the reference does not take float64 it is judged by as it stands, with the published tolerance.
    """
    text, module = read_source(bare.reference), load_module(bare.reference)
    if not hasattr(module, "Model"):
        raise UserError(f"{bare.reference}: no class Model; expected the reference, a torch.nn.Module of that name")
    shapes, adapter = _shapes(bare.reference, module)
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(text)
    (folder / "input.py").write_text(text + adapter)
    (folder / "shapes.json").write_text(json.dumps(shapes, indent=1) + "\n")
    if bare.work is not None:
        (folder / "work.py").write_text(read_source(bare.work))
        generate_roofline(folder)
    make, entries, about = load_module(folder / "input.py"), {}, None
    make = getattr(make, "make_inputs", None) or make._make_inputs
    for shape, given in shapes.items():
        if bare.work is not None and about is not None:
            break
        label = f"{bare.reference}: shape {shape}"
        try:
            inputs = draw(lambda kwargs=given["input_kwargs"]: make(**kwargs), _SEED, device, "e4m3fn")
            model = module.Model(**given["init_kwargs"]).eval().to(device)
        except Exception as error:  # noqa: BLE001 - whatever the user's file raises is about that file
            raise UserError(f"{label}: {type(error).__name__}: {' '.join(str(error).split())}") from error
        work, outputs = _run(label, model, inputs)
        about = about or (inputs, outputs)
        entries[shape] = roofline_entry(work) | {"estimated": True}
        if bare.work is None:
            told(f"shape {shape}: {work.total_flops:.3g} FLOP, {work.total_bytes:.3g} bytes, counted: an estimate")
    if bare.work is None:
        write_roofline(folder, entries)
    metadata = _metadata(operator, bare.reference, shapes, *about)
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")
    if why := _no_oracle(folder, about[0]):
        told(f"the reference does not run in float64 ({why}); outputs are held against it as it stands")
        metadata["oracle"] = "declared"
        metadata["compare"] = {
            name: {"kind": "published"} if rule["kind"] == "float" else rule
            for name, rule in metadata["compare"].items()
        }
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")


def _shapes(path: Path, module: ModuleType) -> tuple[dict[str, Any], str]:
    """shapes.json, and what input.py needs beyond the reference's text."""
    if hasattr(module, "make_inputs") or hasattr(module, "_make_inputs"):
        given = getattr(module, "SHAPES", None)
        if isinstance(given, list):
            given = {str(i): each for i, each in enumerate(given)}
        if not isinstance(given, Mapping) or not given:
            raise UserError(f"{path}: no SHAPES; expected a list or object of {{init_kwargs, input_kwargs}}")
        for shape, entry in given.items():
            if not isinstance(entry, Mapping) or set(entry) - {"init_kwargs", "input_kwargs"}:
                raise UserError(f"{path}: SHAPES: {shape}: expected an object of init_kwargs and input_kwargs")
        return {
            str(shape): {"init_kwargs": entry.get("init_kwargs", {}), "input_kwargs": entry.get("input_kwargs", {})}
            for shape, entry in given.items()
        }, ""
    if not hasattr(module, "get_inputs"):
        raise UserError(f"{path}: nothing makes inputs; expected {FORMS}")
    operands = [name for name in inspect.signature(module.Model.forward).parameters if name != "self"]
    arguments = [name for name in inspect.signature(module.Model.__init__).parameters if name != "self"]
    given = list(module.get_init_inputs()) if hasattr(module, "get_init_inputs") else []
    init = dict(zip(arguments, given, strict=False))
    try:
        json.dumps(init)
    except TypeError as error:
        raise UserError(f"{path}: get_init_inputs: {error}; expected numbers, text and lists") from None
    adapter = (
        '\n\ndef make_inputs():\n    """What get_inputs makes, by the names of forward."""\n'
        f"    return dict(zip({tuple(operands)!r}, get_inputs()))\n"
    )
    return {"0": {"init_kwargs": init, "input_kwargs": {}}}, adapter


def _run(label: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor]):
    """Work and named outputs of the reference. Raises UserError for what a problem cannot be made of."""
    weights = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    if weights:
        raise UserError(f"{label}: Model has its own weights ({weights[0]}); make them operands of forward")
    before = {name: each.clone() for name, each in inputs.items()}
    try:
        work, returned = count(model, inputs)
    except Exception as error:  # noqa: BLE001
        raise UserError(f"{label}: forward: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not same_tensors(before, inputs):
        raise UserError(f"{label}: forward changes its operands; leave them, and return what they become")
    outputs = {"out": returned} if isinstance(returned, torch.Tensor) else returned
    if not isinstance(outputs, dict) or not all(isinstance(each, torch.Tensor) for each in outputs.values()):
        raise UserError(f"{label}: forward returns {type(returned).__name__}; expected a tensor or a dict of tensors")
    return work, outputs


def _metadata(operator: str, path: Path, shapes: Mapping[str, Any], inputs, outputs) -> dict[str, Any]:
    dtypes = {name: short_name(each.dtype) for name, each in [*inputs.items(), *outputs.items()]}
    for name, dtype in dtypes.items():
        if dtype not in NAMES:
            raise UserError(f"{path}: {name} is {dtype}; expected one of {', '.join(NAMES)}")
    for name, each in outputs.items():
        if each.dtype.itemsize == 1 and each.is_floating_point():
            raise UserError(f"{path}: {name} is {dtypes[name]}; a quantizing kernel needs a problem folder (suite new)")
    return {
        "operator": operator,
        "phase": "unknown",
        "inputs": {name: {"dtype": dtypes[name]} for name in inputs},
        "outputs": {name: {"dtype": short_name(each.dtype)} for name, each in outputs.items()},
        "mutates": [],
        "constant": [],
        "compare": {name: {"kind": "float" if each.is_floating_point() else "exact"} for name, each in outputs.items()},
        "shapes": {shape: {"origin": "atrex", "description": f"of {path.name}"} for shape in shapes},
    }


def _no_oracle(folder: Path, inputs: dict[str, torch.Tensor]) -> str | None:
    """Why the reference cannot be judged by its run in float64, None where it can."""
    problem = load_problem(folder)
    shape = next(iter(problem.shapes.values()))
    try:
        base, exact = declared(problem, shape, inputs), oracle(problem, shape, inputs)
        found = compare(problem, shape, inputs, exact, base, base)
    except Exception as error:  # noqa: BLE001 - a reference that does not take float64 fails in ways of its own
        return " ".join(str(error).split())[:120]
    return None if found.passed else f"it differs from itself: {found.detail or found.output}"
