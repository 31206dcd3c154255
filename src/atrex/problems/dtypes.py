"""Short dtype names, as metadata, roofline files and chips use them, and their torch counterparts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from atrex.errors import UserError

if TYPE_CHECKING:
    import torch

Fp8Encoding = Literal["e4m3fn", "e4m3fnuz"]

# "fp8_e4m3" is the chip's own encoding: float8_e4m3fn on NVIDIA and the CPU, float8_e4m3fnuz on gfx942.
_TORCH = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e4m3fnuz": "float8_e4m3fnuz",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "bool": "bool",
}
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e4m3fnuz": 1}
_BYTES |= {"int64": 8, "int32": 4, "int8": 1, "bool": 1}

NAMES = tuple(_TORCH)


def _known(name: str) -> str:
    if name not in _TORCH:
        raise UserError(f"unknown dtype {name!r}: expected one of {', '.join(NAMES)}")
    return name


def torch_dtype(name: str, fp8: Fp8Encoding = "e4m3fn") -> torch.dtype:
    """The torch dtype of a short name; `fp8` is the chip's encoding of "fp8_e4m3". Raises UserError if unknown."""
    import torch

    attribute = f"float8_{fp8}" if _known(name) == "fp8_e4m3" else _TORCH[name]
    return getattr(torch, attribute)


def short_name(dtype: torch.dtype) -> str:
    """The short name of a torch dtype (float32 is "fp32", never "tf32"); torch's own name where there is none."""
    full = str(dtype).removeprefix("torch.")
    return next((short for short, name in _TORCH.items() if name == full), full)


def itemsize(name: str) -> int:
    """Bytes an element takes in memory. Raises UserError for an unknown name."""
    return _BYTES[_known(name)]
