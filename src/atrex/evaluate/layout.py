"""Where operands and outputs lie in a shared block: pure arithmetic, the same on both sides of the boundary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ALIGNMENT = 512


@dataclass(frozen=True)
class Slot:
    """One tensor in a block: `dtype` is torch's name without the prefix, `offset` and `nbytes` are bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def view(self, block: torch.Tensor) -> torch.Tensor:
        """The dense tensor that lies at this slot of `block` (a flat uint8 tensor)."""
        import torch

        flat = block[self.offset : self.offset + self.nbytes]
        return flat.view(getattr(torch, self.dtype)).view(self.shape)

    def at(self, offset: int) -> Slot:
        """The same slot `offset` bytes further on."""
        return replace(self, offset=self.offset + offset)

    def as_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Slot:
        return cls(**(data | {"shape": tuple(data["shape"])}))


def plan(tensors: Mapping[str, torch.Tensor]) -> tuple[list[Slot], int]:
    """Slots for dense copies of `tensors`, in order, and the bytes they need in all."""
    slots = []
    offset = 0
    for name, tensor in tensors.items():
        nbytes = math.prod(tensor.shape) * tensor.element_size()
        slots.append(Slot(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return slots, max(offset, ALIGNMENT)


def raw_words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as a flat integer tensor of the widest type that divides them."""
    import torch

    flat = tensor.reshape(-1).view(torch.uint8)
    for word in (torch.int64, torch.int32, torch.int16):
        if flat.numel() % word.itemsize == 0 and flat.data_ptr() % word.itemsize == 0:
            return flat.view(word)
    return flat
