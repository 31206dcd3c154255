"""Work counted from one run of a reference: what to go by where nobody has said what the operator's W and Q are.

An estimate, and called one. It counts what the reference does, so a reference that touches or computes more than the
operator's meaning asks for (a whole cache converted before a few pages are read) gives a ceiling that is too low.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from atrex.problems.dtypes import short_name
from atrex.roofline.work import Work

_aten = torch.ops.aten
# Pointwise by tag, but they move values and compute none.
_MOVES = frozenset((_aten.clone, _aten._to_copy, _aten.copy_, _aten.where, _aten.masked_fill, _aten.fill_))
_REDUCTIONS = frozenset(
    getattr(_aten, name)
    for name in (
        "sum", "mean", "amax", "amin", "max", "min", "prod", "var", "var_mean", "std", "logsumexp", "cumsum", "cumprod",
        "linalg_vector_norm", "norm", "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm",
    )
)  # fmt: skip


def count(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[Work, Any]:
    """Work of `model(*inputs.values())`, and what it returned.

    Products count as torch's own FLOP formulas say, on the matrix engine, in the dtype that their operands had before
    they were widened. Pointwise operations count one FLOP an element of the result, reductions one an element of the
    operand, on the vector engine. Read is what operations take of each input: distinct rows of an indexed one, else the
    elements of its view; every element once. Written is what is returned.
    """
    counter = _Counter(inputs)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        returned = model(*inputs.values())
    outputs = [each for each in tree_leaves(returned) if isinstance(each, torch.Tensor)]
    flops = {engine: dict(by_dtype) for engine, by_dtype in counter.flops.items() if by_dtype}
    return Work(flops, counter.bytes_read, sum(each.numel() * each.element_size() for each in outputs)), returned


class _Counter(TorchDispatchMode):
    def __init__(self, inputs: Mapping[str, torch.Tensor]):
        super().__init__()
        self.flops: dict[str, Counter[str]] = {"matrix": Counter(), "vector": Counter()}
        self._size = {_storage(each): each.untyped_storage().nbytes() for each in inputs.values()}
        self._read: dict[int, dict[Any, int]] = defaultdict(dict)  # by storage, then by view: read again is read once
        self._before_widening = WeakTensorKeyDictionary()

    @property
    def bytes_read(self) -> int:
        return sum(min(self._size[where], sum(views.values())) for where, views in self._read.items())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        taken = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if not made or not taken:
            return result
        packet, where = func.overloadpacket, {_storage(each) for each in taken}
        view = not func._schema.is_mutable and all(_storage(each) in where for each in made)
        if view or (packet is _aten._to_copy and made[0].is_floating_point()):
            origin = self._origin(taken[0])
            if view or origin.itemsize < made[0].dtype.itemsize:
                for each in made:
                    self._before_widening[each] = origin
        if view:
            return result
        for each in taken:
            if _storage(each) in self._size:
                read = _touched(packet, args, each, made[0])
                self._read[_storage(each)][each.storage_offset(), each.shape, each.stride(), read] = read
        self._compute(func, packet, args, kwargs, taken, made[0], result)
        return result

    def _compute(self, func, packet, args, kwargs, taken, made, result) -> None:
        if packet in flop_registry:
            widest = max((self._origin(each) for each in taken if each.is_floating_point()), key=lambda d: d.itemsize)
            self.flops["matrix"][short_name(widest)] += int(flop_registry[packet](*args, **kwargs, out_val=result))
            return
        if packet in _MOVES:
            return
        elements = 0
        if packet in _REDUCTIONS and taken[0].is_floating_point():
            elements = taken[0].numel()
        elif torch.Tag.pointwise in func.tags and made.is_floating_point():
            elements = made.numel()
        if elements:
            self.flops["vector"]["fp64" if taken[0].dtype == torch.float64 else "fp32"] += elements

    def _origin(self, tensor: torch.Tensor) -> torch.dtype:
        return self._before_widening.get(tensor, tensor.dtype)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _touched(packet, args, tensor: torch.Tensor, made: torch.Tensor) -> int:
    """Bytes that an operation reads of one of its operands."""
    if packet is _aten.index and tensor is args[0]:
        given = [(dim, each) for dim, each in enumerate(args[1]) if each is not None]
        if len(given) == 1:
            return _rows(tensor, *given[0])
        return min(made.numel(), tensor.numel()) * tensor.element_size()
    if packet is _aten.index_select and tensor is args[0]:
        return _rows(tensor, args[1], args[2])
    if packet is _aten.embedding and tensor is args[0]:
        return _rows(tensor, 0, args[1])
    if packet is _aten.gather and tensor is args[0]:
        return min(made.numel(), tensor.numel()) * tensor.element_size()
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


def _rows(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> int:
    """Bytes of the distinct entries along `dim` that an index addresses."""
    if index.dtype == torch.bool:
        span = tensor.shape[dim : dim + index.dim()].numel()
        return int(index.sum()) * (tensor.numel() // max(span, 1)) * tensor.element_size()
    size = tensor.shape[dim]
    return int((index % size).unique().numel()) * (tensor.numel() // max(size, 1)) * tensor.element_size()
