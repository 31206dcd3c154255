"""Tensors on a device that is not here: fake throughout, and beside each whatever is known of its values.

`FakeTensorMode` works out shapes, dtypes and strides. What launch code reads back (lengths, tables, counts) it reads
from integer operands, so those keep their values: an operator whose tensors are all known runs on the host as well,
and its result is known in turn. A kernel launch makes unknown whatever it may have written.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from atrex.dsls.offline import Undetermined

LIMIT = 1 << 24  # elements of integer tensors: beyond it values are not kept
FLOAT_LIMITS = 1 << 18, LIMIT  # of floating ones, from which integers may be drawn: the second where the first fails
NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
_KNOWN = "_atrex_known"  # the attribute of a fake tensor that holds the next


@dataclass
class _Memory:
    """Whether the memory behind a known tensor, and behind every view of it, still holds what the host copy says."""

    valid: bool = True
    kept: bool = False


@dataclass
class _Known:
    copy: torch.Tensor
    memory: _Memory


class _Fakes(FakeTensorMode):
    @property
    def avoid_device_init(self) -> bool:
        """Always: what torch says about its device is made up."""
        return True


class KnownValues(TorchDispatchMode):
    """Enter `fake()` for both modes. `drawing` lets random operators have values, as for inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fakes = _Fakes(allow_non_fake_inputs=True)
        self.drawing = False
        self.float_limit = FLOAT_LIMITS[0]

    @contextlib.contextmanager
    def fake(self) -> Iterator[None]:
        with self.fakes, self:
            yield

    # -- what is known -------------------------------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The host copy of a tensor's values, None if they are not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        found = getattr(tensor, _KNOWN, None)
        return found.copy if found is not None and found.memory.valid else None

    def keep(self, tensor: torch.Tensor) -> None:
        """No kernel launch makes this operand's values unknown: it is not among those that may change."""
        if found := getattr(tensor, _KNOWN, None):
            found.memory.kept = True

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor's values are not known from here on, nor those of any view of the same memory."""
        if found := getattr(tensor, _KNOWN, None):
            found.memory.valid = found.memory.kept

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _dispatch(self, func: Any, types: Any, args: tuple = (), kwargs: Mapping | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace == "prim":  # what kind of tensor it is: the copy on the host is of another
            return func(*args, **kwargs)
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        values = [self.value(t) for t in tensors]
        real: Any = None
        if all(v is not None for v in values) and self._may_run(func, values):
            real = self._run(func, args, kwargs)
        if real is None:
            for tensor in _written(func, args, kwargs):
                self.forget(tensor)
        if real is not None and not isinstance(real, torch.Tensor) and _plain(real):
            return real
        try:
            result = func(*args, **kwargs)
        except NEEDS_VALUES as error:
            if real is None:
                raise Undetermined(f"{func.name()} asks for values that only a device can compute") from error
            result = self._of_same_form(real, _device(tensors, kwargs))
        if real is not None:
            self._note(tensors, result, real)
        return result

    def _may_run(self, func: Any, values: list[torch.Tensor]) -> bool:
        if not all(map(self._small, values)) or func.name().startswith("aten::empty"):
            return False
        return self.drawing or torch.Tag.nondeterministic_seeded not in func.tags

    def _run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The operator on the host copies; None where the host cannot do it or the result is too large."""

        def on_host(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return self.value(x)
            return torch.device("cpu") if isinstance(x, torch.device) else x

        args, kwargs = pytree.tree_map(on_host, (args, kwargs))
        kwargs.pop("pin_memory", None)
        if self._large(func, args, kwargs):
            return None
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            try:
                return func(*args, **kwargs)
            except (RuntimeError, NotImplementedError):  # the fake run says what is wrong with it, if anything is
                return None

    def _small(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() <= (self.float_limit if tensor.is_floating_point() else LIMIT)

    def _large(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> bool:
        """Whether an operator that takes a size is asked for more elements than are kept."""
        sizes = [x for x in args if isinstance(x, (list, tuple)) and x and all(type(n) is int for n in x)]
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        whole = func.name().split("::")[1].split(".")[0] in ("randint", "randperm", "arange")
        limit = LIMIT if whole or not dtype.is_floating_point else self.float_limit
        return any(math.prod(size) > limit for size in sizes)

    def _note(self, operands: list[torch.Tensor], result: Any, real: Any) -> None:
        memory = {}
        for operand in operands:
            if found := getattr(operand, _KNOWN, None):
                memory[found.copy.untyped_storage()._cdata] = found.memory
        for fake, copy in zip(pytree.tree_leaves(result), pytree.tree_leaves(real), strict=True):
            if isinstance(fake, FakeTensor) and self._small(copy):
                shared = memory.get(copy.untyped_storage()._cdata)
                setattr(fake, _KNOWN, _Known(copy, shared or _Memory()))

    def _of_same_form(self, real: Any, device: torch.device) -> Any:
        """Fakes of the form of values whose form could not be told beforehand."""

        def fake_of(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            with self.fakes:
                return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

        return pytree.tree_map(fake_of, real)


# Set after the classes were made: torch wraps a method defined inside one so that the first dispatch imports dynamo,
# seconds that nothing here needs.
KnownValues.__torch_dispatch__ = KnownValues._dispatch
_Fakes.__torch_dispatch__ = inspect.unwrap(FakeTensorMode.__torch_dispatch__)


def _written(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor))


def _plain(result: Any) -> bool:
    return not any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(result))


def _device(tensors: Iterable[torch.Tensor], kwargs: Mapping[str, Any]) -> torch.device:
    asked = kwargs.get("device")
    return torch.device(asked) if asked is not None else next((t.device for t in tensors), torch.device("cpu"))
