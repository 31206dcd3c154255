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
    """The two blocks shared with one worker, grown when a case needs more room. `close` frees them, those that were
    outgrown too, once the worker is gone: one that keeps what it has mapped must not find there what comes after.

    One block holds the operands, at one or more places of equal layout, the other the mailboxes for outputs. All but a
    batch uses the first mailbox.
    """

    PLACES = 44
    PLACES_BYTES = {"cuda": 1 << 30, "cpu": 128 << 20}  # of all places together; larger operands have fewer
    MAILBOXES_BYTES = {"cuda": 512 << 20, "cpu": 64 << 20}  # of all mailboxes together

    def __init__(self, worker: Worker, device: torch.device):
        self._worker = worker
        self._device = device
        self._inputs: CudaBlock | HostBlock | None = None
        self._outputs: CudaBlock | HostBlock | None = None
        self._outgrown: list[CudaBlock | HostBlock] = []
        self._mutates: tuple[str, ...] = ()
        self._layout: dict[str, Any] = {}
        self._slots: tuple[list[Slot], list[Slot]] = ([], [])

    @property
    def places(self) -> int:
        return self._layout["places"]

    @property
    def mailboxes(self) -> int:
        return self._layout["mailboxes"]

    def bind(
        self, inputs: Tensors, results: Tensors, timeout: float, places: int = 1, mutates: Collection[str] = (),
        mailboxes: int = 1,
    ) -> None:  # fmt: skip
        """Lay out `inputs`, and outputs like those of `results` that are returned; tell the worker if anything is new.

        There are up to `places` and `mailboxes`, fewer where they would be too large. The results that `mutates` names
        are not returned: the forward leaves them in the operand of that name. Raises CudaDriverError when the device
        has no room, and what `Worker.ask` raises.
        """
        returned = {name: tensor for name, tensor in results.items() if name not in mutates}
        self._mutates = tuple(name for name in results if name in mutates)
        (ins, in_bytes), (outs, out_bytes) = plan(inputs), plan(returned)
        kind = self._device.type
        layout = {
            "inputs": [s.as_json() for s in ins],
            "outputs": [s.as_json() for s in outs],
            "mutates": list(self._mutates),
            "places": max(1, min(places, self.PLACES_BYTES[kind] // in_bytes)),
            "place_bytes": in_bytes,
            "mailboxes": max(1, min(mailboxes, self.MAILBOXES_BYTES[kind] // out_bytes)),
            "mailbox_bytes": out_bytes,
        }
        grown = self._grow("_inputs", layout["places"] * in_bytes)
        grown |= self._grow("_outputs", layout["mailboxes"] * out_bytes)
        if layout == self._layout and not grown:
            return
        self._layout, self._slots = layout, (ins, outs)
        order: dict[str, Any] = {"op": "bind"} | layout
        fds: list[int] = []
        if grown:
            exported = [block.export() for block in (self._inputs, self._outputs)]
            order["blocks"] = [spec for spec, _ in exported]
            fds = [fd for _, more in exported for fd in more]
        answer = self._worker.ask(order, timeout, fds)
        if "raised" in answer:
            raise WorkerDied(f"could not map the operands ({answer['raised']}: {answer['message']})")

    def _grow(self, which: str, nbytes: int) -> bool:
        """Make a block large enough; whether it is a new one."""
        old = getattr(self, which)
        if old is not None and old.nbytes >= nbytes:
            return False
        setattr(self, which, new_block(nbytes, self._device))
        if old is not None:
            self._outgrown.append(old)
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in (self._inputs, self._outputs, *self._outgrown) if block is not None)

    def forget(self) -> None:
        """The worker has forgotten what was laid out: the next `bind` says it anew. The blocks stay."""
        self._layout, self._slots, self._mutates = {}, ([], []), ()

    # -- operands --------------------------------------------------------------------------------------------------

    def operands(self, count: int) -> torch.Tensor:
        """The bytes of the first `count` places, one row each."""
        size = self._layout["place_bytes"]
        return self._inputs.bytes[: count * size].view(count, size)

    def operands_in(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """The operands that lie in one row of `operands`, or in a copy of one, by name."""
        return {s.name: s.view(row) for s in self._slots[0]}

    def inputs(self, place: int = 0) -> dict[str, torch.Tensor]:
        """The operands as the worker has them at a place, by name."""
        return self.operands_in(self.operands(place + 1)[place])

    def write(self, inputs: Tensors, place: int = 0) -> None:
        """Fill the operands of a place and wait until they are there."""
        for name, view in self.inputs(place).items():
            view.copy_(inputs[name])
        self.synchronize()

    def mutated(self, inputs: Tensors, allowed: Collection[str] = (), place: int = 0) -> list[str]:
        """Names of operands whose bytes differ from `inputs` although metadata does not declare it."""
        return [
            name
            for name, view in self.inputs(place).items()
            if name not in allowed and not torch.equal(raw_words(view), raw_words(inputs[name].contiguous()))
        ]

    # -- outputs ---------------------------------------------------------------------------------------------------

    def mail(self, count: int) -> torch.Tensor:
        """The bytes of the first `count` mailboxes, one row each."""
        size = self._layout["mailbox_bytes"]
        return self._outputs.bytes[: count * size].view(count, size)

    def outputs_in(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs that lie in one row of `mail`, or in a copy of one, by name."""
        return {s.name: s.view(row) for s in self._slots[1]}

    def results(self, place: int = 0) -> dict[str, torch.Tensor]:
        """What the last forward gave, by name: the mailbox, and the operands of a place that it had to change."""
        operands = self.inputs(place)
        return self.outputs_in(self.mail(1)[0]) | {name: operands[name] for name in self._mutates}

    def clear(self, count: int = 1) -> None:
        """Fill mailboxes with NaN bytes: nothing in them can be taken for outputs of what comes next."""
        self.mail(count).fill_(0xFF)
        self.synchronize()

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        for block in (self._inputs, self._outputs, *self._outgrown):
            if block is not None:
                block.close()
        self._inputs = self._outputs = None
        self._outgrown.clear()


class Refresher:
    """New values for every call: the judge's copy of the operands changes a little, the shared one follows.

    A few dozen elements of each floating operand trade places, at positions drawn from the judge's secret; whatever
    a candidate remembers of an earlier call is then wrong in places that it cannot know. `fixed` operands stay as they
    are.
    """

    COUNT = 64

    def __init__(self, inputs: Tensors, seed: int, fixed: Collection[str] = ()):
        self.inputs = {name: t.clone().contiguous() for name, t in inputs.items()}
        self._moving = [
            t for name, t in self.inputs.items() if name not in fixed and t.is_floating_point() and t.numel() > 1
        ]
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
