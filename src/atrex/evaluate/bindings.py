"""The judge's side of the shared blocks: operands go in, outputs come back, undeclared mutations are seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from atrex.evaluate.layout import Slot, plan, raw_words
from atrex.evaluate.shared_memory import CudaBlock, HostBlock, new_block
from atrex.evaluate.spawn import Worker

Tensors = Mapping[str, torch.Tensor]


class Bindings:
    """Two blocks shared with one worker, grown when a case needs more room. `close` frees them."""

    def __init__(self, worker: Worker, device: torch.device):
        self._worker = worker
        self._device = device
        self._blocks: dict[str, CudaBlock | HostBlock] = {}
        self._slots: dict[str, list[Slot]] = {}
        self._structure: Any = None

    def bind(self, inputs: Tensors, outputs: Tensors, timeout: float) -> dict[str, Any]:
        """Lay out `inputs` and outputs like `outputs`, and tell the worker if anything is new. Its answer, or {}."""
        new: dict[str, Any] = {}
        fds: list[int] = []
        changed = False
        for name, tensors in (("inputs", inputs), ("outputs", outputs)):
            slots, nbytes = plan(tensors)
            changed |= slots != self._slots.get(name)
            self._slots[name] = slots
            block = self._blocks.get(name)
            if block is None or block.nbytes < nbytes:
                if block is not None:
                    block.close()
                self._blocks[name] = block = new_block(nbytes, self._device)
                new[name], more = block.export()
                fds += more
        if not (changed or new):
            return {}
        order = {"op": "bind", "blocks": new} | {k: [s.as_json() for s in v] for k, v in self._slots.items()}
        return self._worker.ask(order, timeout, fds)

    def views(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of block `name` ("inputs" or "outputs") by name."""
        return {s.name: s.view(self._blocks[name].bytes) for s in self._slots[name]}

    def write(self, inputs: Tensors) -> None:
        """Fill the operands and wait until they are there."""
        for name, view in self.views("inputs").items():
            view.copy_(inputs[name])
        self.synchronize()

    def clear(self) -> None:
        """Fill the mailbox with NaN bytes: nothing in it can be taken for outputs of the next call."""
        self._blocks["outputs"].bytes.fill_(0xFF)
        self.synchronize()

    def mutated(self, inputs: Tensors, allowed: Collection[str] = ()) -> list[str]:
        """Names of operands whose bytes differ from `inputs` although metadata does not declare it."""
        views = self.views("inputs")
        return [
            name
            for name, view in views.items()
            if name not in allowed and not torch.equal(raw_words(view), raw_words(inputs[name].contiguous()))
        ]

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()


class Refresher:
    """New values for every call: the judge's copy of the operands changes a little, the shared one follows.

    A few dozen elements of each floating operand trade places, at positions drawn from the judge's secret; whatever
    a candidate remembers of an earlier call is then wrong in places that it cannot know.
    """

    COUNT = 64

    def __init__(self, inputs: Tensors, seed: int):
        self.inputs = {name: t.clone().contiguous() for name, t in inputs.items()}
        self._moving = [t for t in self.inputs.values() if t.is_floating_point() and t.numel() > 1]
        device = next(iter(self.inputs.values())).device
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._device = device

    def step(self) -> None:
        words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        for tensor in self._moving:
            flat = tensor.view(-1).view(words[tensor.element_size()])
            count = min(self.COUNT, flat.numel())
            index = torch.randint(flat.numel(), (count,), generator=self._generator, device=self._device)
            flat[index] = flat[index.roll(1)]
