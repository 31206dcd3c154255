"""A problem in memory: shapes, metadata, semantic work, and the calls into the folder's own Python."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.errors import UserError
from atrex.outputs import by_name
from atrex.problems.metadata import Metadata
from atrex.problems.modules import load_module
from atrex.roofline.work import Work

if TYPE_CHECKING:
    import torch

    from atrex.problems.dtypes import Fp8Encoding


@dataclass(frozen=True)
class Shape:
    """One configuration of an operator. Ids of held-out shapes are "h0", "h1", ..."""

    id: str
    init_kwargs: Mapping[str, Any]
    input_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """One operator folder. Built by `atrex.problems.load.load_problem`."""

    operator: str
    folder: Path
    metadata: Metadata
    shapes: dict[str, Shape]
    held_out: dict[str, Shape] = field(default_factory=dict)
    foreign: bool = False
    """Made by others in the published form: judged with its own inputs, roofline and tolerance."""
    declared_work: Mapping[str, Work] = field(default_factory=dict)
    """What roofline.json says, by shape id; `work` prefers work.py, with which the loader has compared it."""

    def shape(self, shape_id: str) -> Shape:
        """The listed or held-out shape of that id. Raises UserError if there is none."""
        found = self.shapes.get(shape_id) or self.held_out.get(shape_id)
        if found is None:
            ids = list(self.shapes)
            raise UserError(f"{self.operator}: no shape {shape_id!r}: expected an id from {ids[0]} to {ids[-1]}")
        return found

    def work(self, shape: Shape) -> Work:
        """W (FLOPs by engine and dtype) and Q (bytes) of a shape. Raises UserError if the folder cannot tell."""
        path = self.folder / "work.py"
        if path.exists():
            return _call(path, load_module(path).work, shape.id, shape.init_kwargs, shape.input_kwargs)
        if shape.id not in self.declared_work:
            raise UserError(f"{self.folder.name}: no work.py, and roofline.json has no shape {shape.id!r}")
        return self.declared_work[shape.id]

    def published_work(self, shape: Shape) -> tuple[int, int] | None:
        """(FLOPs, bytes) as the published release counts them for a published shape, None for any other.

        They are our totals except where work.py has a function `published(init_kwargs, input_kwargs)`, which gives
        (FLOPs, bytes read, bytes written) of a release that counts something else.
        """
        meta = self.metadata.shapes.get(shape.id)
        if meta is None or meta.origin != "published":
            return None
        path = self.folder / "work.py"
        other = getattr(load_module(path), "published", None) if path.exists() else None
        if other is None:
            work = self.work(shape)
            return work.total_flops, work.total_bytes
        flops, read, written = _call(path, other, shape.id, shape.init_kwargs, shape.input_kwargs)
        return flops, read + written

    def reference(self, shape: Shape, fp8: Fp8Encoding = "e4m3fn") -> torch.nn.Module:
        """`Model(**init_kwargs)` of reference.py, in evaluation mode, on the CPU until it is moved.

        A Model that produces fp8 has an attribute `fp8_dtype`, which becomes the torch dtype of the chip's encoding.
        """
        path = self.folder / "reference.py"
        module = load_module(path)
        if not hasattr(module, "Model"):
            raise UserError(f"{_label(path)}: no class Model: expected a torch.nn.Module of that name")
        model = _call(path, lambda: module.Model(**shape.init_kwargs).eval(), shape.id)
        if hasattr(model, "fp8_dtype"):
            from atrex.problems.dtypes import torch_dtype

            model.fp8_dtype = torch_dtype("fp8_e4m3", fp8)
        return model

    def make_inputs(
        self, shape: Shape, seed: int, device: str | torch.device, fp8: Fp8Encoding = "e4m3fn"
    ) -> dict[str, torch.Tensor]:
        """Draw the inputs of a shape on `device`; a (seed, kind of device) pair always draws the same values.

        The caller's random state and default device are left as they were. `fp8` is the chip's encoding of
        "fp8_e4m3" operands. Raises UserError when the folder's function fails or returns no dict of tensors.
        """
        from atrex.problems.materialize import draw

        path = self.folder / "input.py"
        module = load_module(path)
        make = getattr(module, "make_inputs", None) or getattr(module, "_make_inputs", None)
        if make is None:
            raise UserError(f"{_label(path)}: no function make_inputs(**input_kwargs)")
        return _call(path, lambda: draw(lambda: make(**shape.input_kwargs), seed, device, fp8), shape.id)

    def corner_cases(
        self, shape: Shape, seed: int, device: str | torch.device, fp8: Fp8Encoding = "e4m3fn"
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        """The operator's corner cases at this shape by name, drawn when called; {} where the folder has none."""
        from atrex.problems.materialize import draw

        path = self.folder / "input.py"
        listed = getattr(load_module(path), "corner_cases", None)
        if listed is None:
            return {}
        cases = _call(path, lambda: listed(**shape.input_kwargs), shape.id)
        return {
            name: lambda make=make: _call(path, lambda: draw(make, seed, device, fp8), shape.id)
            for name, make in cases.items()
        }

    def input_dtype(self, shape: Shape, name: str) -> str:
        """Short dtype of an input at this shape."""
        return _resolve(self.metadata.inputs[name].dtype, shape)

    def output_dtype(self, shape: Shape, name: str) -> str:
        """Short dtype of an output at this shape."""
        return _resolve(self.metadata.outputs[name].dtype, shape)


@dataclass(frozen=True)
class Suite:
    """Operators, shapes and weights of one release. `weights` cover all published operators and sum to 1."""

    folder: Path
    version: str
    problems: dict[str, Problem]
    weights: dict[str, float]

    def problem(self, operator: str) -> Problem:
        """The problem of that name. Raises UserError, with the nearest names, if there is none."""
        if operator not in self.problems:
            close = difflib.get_close_matches(operator, self.problems, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(self.problems)}"
            raise UserError(f"unknown operator {operator!r}: {hint}")
        return self.problems[operator]


def named_outputs(value: Any, names: list[str] | None = None) -> dict[str, torch.Tensor]:
    """What a reference returned, by output name: a tensor is "out", a dict stands, a tuple takes `names` in order.

    Where `names` are not as many as there are outputs, which folders made by others may have, a tensor is "out" and a
    tuple is out0, out1, ... Raises TypeError when `value` is none of these or holds anything but tensors.
    """
    import torch

    many = len(value) if isinstance(value, (tuple, list)) else 1
    fitting = names if names and len(names) == many else [f"out{i}" for i in range(many)] if many > 1 else ["out"]
    _, found = by_name(value, fitting)
    if not found:
        raise TypeError("forward returned nothing: expected a tensor or a dict of tensors")
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"output {name!r} is {type(tensor).__name__}: expected a tensor")
    return found


def _resolve(dtype: str, shape: Shape) -> str:
    return shape.input_kwargs["dtype"] if "/" in dtype else dtype


def _label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _call(path: Path, function: Callable[..., Any], shape_id: str, *args: Any) -> Any:
    try:
        return function(*args)
    except UserError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise UserError(f"{_label(path)}: failed on shape {shape_id}: {type(error).__name__}: {text}") from error
