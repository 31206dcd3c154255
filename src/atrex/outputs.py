"""What a forward returned, by name: the same reading on both sides of the trust boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def by_name(value: Any, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The structure ("none", "tensor", "dict" or "tuple") of what a forward returned, and its parts by name.

    A tensor takes the first of `names`, or "out" where there is none; a tuple takes them in order; a dict has its own.
    Raises TypeError for anything else and for a tuple of another length. What a dict or tuple holds is not looked at.
    """
    import torch

    if value is None:
        return "none", {}
    if isinstance(value, torch.Tensor):
        return "tensor", {names[0] if names else "out": value}
    if isinstance(value, Mapping):
        return "dict", dict(value)
    if isinstance(value, (tuple, list)):
        if len(value) != len(names):
            raise TypeError(f"{len(value)} outputs, {len(names)} expected ({', '.join(names)})")
        return "tuple", dict(zip(names, value, strict=True))
    raise TypeError(f"forward returned {type(value).__name__}, expected a tensor or a dict of tensors")
