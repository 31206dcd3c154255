"""Draw input tensors under a given seed, device and fp8 encoding, leaving no trace in the caller's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from atrex.problems.dtypes import Fp8Encoding, torch_dtype


class _Device(TorchFunctionMode):
    """Make `device` the one that new tensors land on, also where a folder pins another accelerator by name.

    An explicit "cpu" stands, so that an input function can draw a host-side choice without a device transfer.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pinned = kwargs.get("device")
        if pinned is not None and torch.device(pinned).type != "cpu":
            kwargs["device"] = self.device
        return func(*args, **kwargs)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw under `seed` on the CPU and on `device`, and leave the caller's random state as it was."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def draw(
    make: Callable[[], dict[str, torch.Tensor]], seed: int, device: str | torch.device, fp8: Fp8Encoding
) -> dict[str, torch.Tensor]:
    """Call `make` and return its tensors on `device`, contiguity and views as made, float8 in the chip's encoding.

    Converting e4m3fn to e4m3fnuz is exact for finite magnitudes up to 240, to which shipped inputs keep.
    Raises TypeError when `make` returns anything but a dict of tensors.
    """
    device = torch.device(device)
    with torch.no_grad(), seeded(seed, device), device, _Device(device):
        made = make()
    if not isinstance(made, dict) or not all(isinstance(t, torch.Tensor) for t in made.values()):
        raise TypeError("expected a dict of tensors")
    encoding = torch_dtype("fp8_e4m3", fp8)
    return {name: _encoded(tensor.to(device), encoding) for name, tensor in made.items()}


def _encoded(tensor: torch.Tensor, encoding: torch.dtype) -> torch.Tensor:
    if tensor.dtype == torch.float8_e4m3fn and encoding != tensor.dtype:
        return tensor.to(torch.float32).to(encoding)
    return tensor
