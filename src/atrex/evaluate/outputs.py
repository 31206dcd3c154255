"""What a forward returned: structure, fingerprints, poison. Used on the worker's side of the boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from atrex.evaluate.layout import raw_words
from atrex.outputs import by_name


class Interface(Exception):
    """The candidate's outputs are not what the contract asks for."""


def named_outputs(value: Any, names: Sequence[str]) -> tuple[str, dict[str, torch.Tensor]]:
    """`atrex.outputs.by_name`. Raises Interface for what no candidate may return."""
    try:
        return by_name(value, names)
    except TypeError as error:
        raise Interface(str(error)) from None


def put_by(value: Any, mailbox: Mapping[str, torch.Tensor]) -> None:
    """Copy what a forward returned into a mailbox, as far as it fits. Raises Interface.

    Judge and worker both do it in batches, so that it costs both the same.
    """
    _, outputs = named_outputs(value, list(mailbox))
    for name, slot in mailbox.items():
        output = outputs.get(name)
        if output is not None and output.shape == slot.shape and output.dtype == slot.dtype:
            slot.copy_(output)


def check_plain(outputs: Mapping[str, Any]) -> None:
    """Refuse everything but plain tensors: a subclass, or a replaced method, could compute when it is looked at."""
    for name, tensor in outputs.items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise Interface(f"output {name!r} is a {type(tensor).__name__}, expected a plain torch.Tensor")
        replaced = sorted(key for key in vars(tensor) if hasattr(torch.Tensor, key))
        if replaced:
            raise Interface(f"output {name!r} replaces Tensor.{replaced[0]}, expected a plain torch.Tensor")
        if tensor.layout != torch.strided:
            raise Interface(f"output {name!r} has layout {tensor.layout}, expected a strided tensor")


def fingerprint(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A checksum of every tensor's bytes, one int64 each, queued on the current stream."""
    if not outputs:
        return torch.zeros(0, dtype=torch.int64)
    sums = [raw_words(t.detach().contiguous()).sum(dtype=torch.int64) for t in outputs.values()]
    return torch.stack(sums)


def poison(tensor: torch.Tensor) -> None:
    """Fill with 0xFF bytes: NaN in every floating format but e4m3fnuz and integers, where it is -1."""
    if tensor.is_contiguous():
        words = raw_words(tensor.detach())
        words.fill_(255 if words.dtype == torch.uint8 else -1)


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and one past the last that a strided tensor can touch."""
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    start = tensor.data_ptr()
    return start, start + (extent + 1) * tensor.element_size() if tensor.numel() else start


def overlapped(tensor: torch.Tensor, operands: Mapping[str, torch.Tensor]) -> list[str]:
    """The operands whose memory `tensor` shares."""
    low, high = address_range(tensor)
    names = []
    for name, operand in operands.items():
        first, last = address_range(operand)
        if low < last and first < high:
            names.append(name)
    return names
