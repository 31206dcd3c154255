"""The judge's side of the shared blocks: operands go in, outputs come back, undeclared mutations are seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from atrex.evaluate.layout import Slot, plan, raw_words
from atrex.evaluate.shared_memory import CudaBlock, HostBlock, new_block
from atrex.evaluate.spawn import Worker, WorkerDied

Tensors = Mapping[str, torch.Tensor]


class Bindings:
    """The blocks shared with one worker, grown when a case needs more room. `close` frees them.

    Beside the mailbox for outputs there are one or more places, blocks of equal layout, for the operands.
    """

    PLACES = 16
    PLACES_BYTES = 1 << 30  # of all places together; larger operands have fewer

    def __init__(self, worker: Worker, device: torch.device):
        self._worker = worker
        self._device = device
        self._inputs: list[CudaBlock | HostBlock] = []
        self._outputs: list[CudaBlock | HostBlock] = []
        self._mapped = False
        self._mutates: tuple[str, ...] = ()
        self._slots: tuple[list[Slot], list[Slot]] = ([], [])

    @property
    def places(self) -> int:
        return len(self._inputs)

    def bind(
        self, inputs: Tensors, results: Tensors, timeout: float, places: int = 1, mutates: Collection[str] = ()
    ) -> None:
        """Lay out `inputs`, and outputs like those of `results` that are returned; tell the worker if anything is new.

        The results that `mutates` names are not returned: the forward leaves them in the operand of that name.
        Raises CudaDriverError when the device has no room, and what `Worker.ask` raises.
        """
        returned = {name: tensor for name, tensor in results.items() if name not in mutates}
        self._mutates = tuple(name for name in results if name in mutates)
        (ins, in_bytes), (outs, out_bytes) = plan(inputs), plan(returned)
        changed = (ins, outs) != self._slots
        self._slots = (ins, outs)
        places = max(1, min(places, self.PLACES_BYTES // max(in_bytes, 1)))
        old = self._grow(self._inputs, in_bytes, places) + self._grow(self._outputs, out_bytes, 1)
        grown = bool(old) or not self._mapped
        if not (changed or grown):
            return
        order: dict[str, Any] = {
            "op": "bind",
            "inputs": [s.as_json() for s in ins],
            "outputs": [s.as_json() for s in outs],
            "mutates": list(self._mutates),
        }
        fds: list[int] = []
        if grown:
            exported = [block.export() for block in [*self._inputs, *self._outputs]]
            order["blocks"] = [spec for spec, _ in exported]
            fds = [fd for _, more in exported for fd in more]
        answer = self._worker.ask(order, timeout, fds)
        self._mapped = True
        for block in old:  # not before the worker has let go of them
            block.close()
        if "raised" in answer:
            raise WorkerDied(f"could not map the operands ({answer['raised']}: {answer['message']})")

    def _grow(self, blocks: list[CudaBlock | HostBlock], nbytes: int, count: int) -> list[CudaBlock | HostBlock]:
        """Make `blocks` enough for `count` times `nbytes`; the blocks that this replaces."""
        if len(blocks) >= count and all(block.nbytes >= nbytes for block in blocks):
            return []
        old = list(blocks)
        blocks[:] = [new_block(nbytes, self._device) for _ in range(count)]
        self._mapped = False
        return old

    def inputs(self, place: int = 0) -> dict[str, torch.Tensor]:
        """The operands as the worker has them at a place, by name."""
        return {s.name: s.view(self._inputs[place].bytes) for s in self._slots[0]}

    def results(self, place: int = 0) -> dict[str, torch.Tensor]:
        """What the last forward gave, by name: the mailbox, and the operands of a place that it had to change."""
        operands = self.inputs(place)
        returned = {s.name: s.view(self._outputs[0].bytes) for s in self._slots[1]}
        return returned | {name: operands[name] for name in self._mutates}

    def write(self, inputs: Tensors, place: int = 0) -> None:
        """Fill the operands of a place and wait until they are there."""
        for name, view in self.inputs(place).items():
            view.copy_(inputs[name])
        self.synchronize()

    def clear(self) -> None:
        """Fill the mailbox with NaN bytes: nothing in it can be taken for outputs of the next call."""
        self._outputs[0].bytes.fill_(0xFF)
        self.synchronize()

    def mutated(self, inputs: Tensors, allowed: Collection[str] = (), place: int = 0) -> list[str]:
        """Names of operands whose bytes differ from `inputs` although metadata does not declare it."""
        return [
            name
            for name, view in self.inputs(place).items()
            if name not in allowed and not torch.equal(raw_words(view), raw_words(inputs[name].contiguous()))
        ]

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        for block in [*self._inputs, *self._outputs]:
            block.close()
        self._inputs.clear()
        self._outputs.clear()


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
