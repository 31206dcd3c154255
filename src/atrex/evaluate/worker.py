"""The worker: one process, one candidate, one unit at a time. Everything it says is checked by the judge.

It is forked from the zygote, gets its orders over one channel, reads inputs from and writes outputs to blocks that
the judge owns, and is killed when the unit is done, or when the candidate's units are. It knows no seed, no expected
value and no ceiling.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from atrex.evaluate.channel import Channel, ChannelClosed, ChannelTimeout
from atrex.evaluate.layout import Slot
from atrex.evaluate.outputs import Interface, check_plain, fingerprint, named_outputs, overlapped, poison, put_by
from atrex.evaluate.probes import PROBES
from atrex.evaluate.shared_memory import Attached
from atrex.evaluate.timing import protocol_for

ORDERS = [
    "start", "load", "artifacts", "bind", "call", "show", "pilot", "retire", "arm", "timed", "batch", "probe", "renew",
]  # fmt: skip
_STAY_AWAKE = 0.2  # seconds
_ASIDE_AFTER = 0.03  # seconds of compilation after which the device is left to others
_POISON_AT_MOST = 2 << 30  # bytes of free allocator memory that are overwritten before a call
_HOLD_AT_MOST = 1 << 30  # bytes that are held so that outputs change their place


class Bench:
    """State of one unit: the model, its operands, the mailbox for outputs, and the last outputs."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.device = torch.device(spec["device"])
        self.scratch = Path(spec["scratch"])
        self.module: Any = None
        self.model: torch.nn.Module | None = None
        self.operands: dict[str, torch.Tensor] = {}
        self.mailbox: dict[str, torch.Tensor] = {}
        self.mailboxes: list[dict[str, torch.Tensor]] = []
        self.names: list[str] = []
        self.mutates: list[str] = []
        self.outputs: dict[str, torch.Tensor] = {}
        self.last_fingerprint: torch.Tensor | None = None
        self.session: Any = None
        self.collector: Any = None
        self.collector_fault: str | None = None
        self.channel: Channel | None = None
        self.protocol: Any = None
        self.fds: list[int] = []
        self.blocks: list[Attached] = []
        self.places: list[dict[str, torch.Tensor]] = []
        self._held: list[torch.Tensor] = []
        self.graph: Any = None
        self.pair: list[Any] = []
        self._may_step_aside = False

    # -- compile ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """All of the start that takes nothing from those who use the device: libraries, driver, activity collector."""
        torch.set_grad_enabled(False)
        torch.set_num_threads(self.spec["threads"])
        if self.device.type != "cuda":
            return
        from atrex.evaluate.timing.cuda import start_driver
        from atrex.profiling.collector import CollectorError, device_collector

        try:
            collector = device_collector(str(self.device))
            collector.enable()
            self.collector = collector
        except CollectorError as error:
            self.collector_fault = str(error)
        start_driver()

    def start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make the context on the device, and keep it busy for a moment."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.protocol = protocol_for(self.device, self.spec)
            self.protocol.warm_up()
        return {"started": True}

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Put the DSL's instruments in, then import the candidate, both once, and build its Model."""
        started = time.monotonic()
        if self.module is None:
            source = Path(message["source"])
            import atrex.dsls

            self.session = atrex.dsls.get(message["dsl"]).instrument(Path(message["cache"]), source)
            self.session.aside = self._step_aside
            started = time.monotonic()
            self.module = _import(source)
        model_class = getattr(self.module, "Model", None)
        if not (inspect.isclass(model_class) and issubclass(model_class, torch.nn.Module)):
            return {"not_a_module": f"Model is {_kind(model_class)}, expected a subclass of torch.nn.Module"}
        self.model = model_class(**message["init_kwargs"]).to(self.device).eval()
        if self.protocol is None:
            self.protocol = protocol_for(self.device, self.spec)
        return {
            "import_seconds": time.monotonic() - started,
            "collector_fault": self.collector_fault,
        }

    def artifacts(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"artifacts": self.session.artifacts(), "missing": self.session.missing()}

    def renew(self, message: dict[str, Any]) -> dict[str, Any]:
        """Forget the unit. The module stays, with what it has compiled, for another unit of the same candidate."""
        self._retire()
        self._held.clear()
        self.model, self.graph, self.pair = None, None, []
        self.operands, self.mailbox, self.mailboxes, self.places = {}, {}, [], []
        self.names, self.mutates = [], []
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {"renewed": True}

    # -- operands and outputs --------------------------------------------------------------------------------------

    def bind(self, message: dict[str, Any]) -> dict[str, Any]:
        """Map the judge's two blocks, if they are new, and lay places for operands and mailboxes over them."""
        self.outputs, self.last_fingerprint = {}, None
        if "blocks" in message:
            self.places, self.operands, self.mailbox, self.mailboxes = [], {}, {}, []
            while self.blocks:
                self.blocks.pop().close()
            for block in message["blocks"]:
                fds = [self.fds.pop(0)] if block["kind"] == "host" else []
                self.blocks.append(Attached(block, fds, self.device))
        operands, mail = (block.bytes for block in self.blocks)
        self.places = _laid(operands, message["inputs"], message["places"], message["place_bytes"])
        self.mailboxes = _laid(mail, message["outputs"], message["mailboxes"], message["mailbox_bytes"])
        self.operands, self.mailbox = self.places[0], self.mailboxes[0]
        self.names = list(self.mailbox)
        self.mutates = message["mutates"]
        return {}

    def forward(self) -> Any:
        return self.model(*self.operands.values())

    @contextlib.contextmanager
    def _step_aside(self) -> Iterator[None]:
        """Say that the device is not needed, and wait until it is there again. Only where the judge has allowed it.

        What is over in `_ASIDE_AFTER`, a kernel found in the cache, is not worth the two ways.
        """
        free = threading.current_thread() is threading.main_thread() and self._may_step_aside
        if not free or torch.cuda.is_current_stream_capturing():
            yield
            return
        self._may_step_aside = False
        self.protocol.synchronize()
        over, said = threading.Event(), threading.Lock()
        aside = False

        def say() -> None:
            nonlocal aside
            with said:
                if not over.is_set():
                    aside = True
                    self.channel.send({"aside": True})

        timer = threading.Timer(_ASIDE_AFTER, say)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            with said:
                over.set()
            timer.cancel()
            if aside:
                self.channel.send({"aside": False})
                self.channel.receive()
            self._may_step_aside = True

    def drop(self) -> None:
        """Let the last outputs go, poisoned."""
        self._retire()

    def take(self, value: Any) -> dict[str, Any]:
        """Hold `value` as the last outputs; how they look."""
        self.outputs, described = self._describe(value)
        return described

    def probe(self, message: dict[str, Any]) -> dict[str, Any]:
        """One readiness probe, on the operands of the first place unless it takes others."""
        self.operands = self.places[0]
        return PROBES[message["probe"]](self, message)

    def _describe(self, value: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        structure, outputs = named_outputs(value, self.names)
        check_plain(outputs)
        return outputs, {
            "structure": structure,
            "outputs": [
                {
                    "name": name,
                    "dtype": str(t.dtype).removeprefix("torch."),
                    "shape": list(t.shape),
                    "contiguous": t.is_contiguous(),
                    "device": str(t.device),
                    "overlaps": self._overlapped(t),
                }
                for name, t in outputs.items()
            ],
        }

    def _overlapped(self, tensor: torch.Tensor) -> list[str]:
        if not overlapped(tensor, {"operands": self.blocks[0].bytes}):
            return []
        return sorted({name for operands in self.places for name in overlapped(tensor, operands)})

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """One forward on the operands of the first place; its outputs go to the mailbox where they fit it.

        With `aside` the device is left to other judges while a kernel is compiled.
        """
        self._retire()
        self.operands = self.places[0]
        self._may_step_aside = message.get("aside", False)
        try:
            value = self.forward()
        finally:
            self._may_step_aside = False
        self.protocol.synchronize()
        self.outputs, described = self._describe(value)
        return described | self.show(message)

    def show(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copy the last outputs to the mailbox, exactly as they are."""
        put_by(self.outputs, self.mailbox)
        self.protocol.synchronize()
        return {"shown": True}

    def _retire(self, held: int = 0) -> bool | None:
        """Fingerprint the last outputs once more, overwrite them and the allocator's free blocks, release them.

        `held` blocks like the outputs are then held until the next time, so that new outputs lie elsewhere.
        """
        same = None
        sizes = [t.nbytes for t in self.outputs.values()]
        if self.last_fingerprint is not None:
            same = bool(torch.equal(fingerprint(self._written()), self.last_fingerprint))
        for tensor in self.outputs.values():
            if not self._overlapped(tensor):
                poison(tensor)
        self.outputs, self.last_fingerprint = {}, None
        self._held.clear()
        if self.device.type == "cuda":
            self._hold(held)
            free = [torch.empty(n, dtype=torch.uint8, device=self.device) for n in sizes if n <= _POISON_AT_MOST]
            for block in free:
                poison(block)
        return same

    def _hold(self, count: int) -> None:
        sizes = [slot.nbytes for slot in self.mailbox.values()]
        for _ in range(min(count, _HOLD_AT_MOST // max(sum(sizes), 1))):
            self._held += [torch.empty(n, dtype=torch.uint8, device=self.device) for n in sizes]

    # -- time ------------------------------------------------------------------------------------------------------

    def pilot(self, message: dict[str, Any]) -> dict[str, Any]:
        """Warm up, then host times of forward on an idle device, in microseconds."""
        self._retire()
        self.protocol.warm_up()
        for _ in range(message["warm"]):
            self.forward()
        return {"host_us": [self.protocol.idle_host_us(self.forward) for _ in range(message["count"])]}

    def _touched(self, outputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [*self.operands.values(), *outputs.values()]

    def arm(self, message: dict[str, Any]) -> dict[str, Any]:
        """Get everything that is not the call out of the way, so that the judge can time `timed` from outside."""
        previous = dict(self.outputs)
        same = self._retire(message.get("held", 0))
        self.operands = self.places[message["place"]]
        if self.device.type != "cuda":
            self.protocol.evict(self._touched(previous))
        self.protocol.synchronize()
        return {"unchanged": same}

    def timed(self, message: dict[str, Any]) -> dict[str, Any]:
        """One call under the protocol. With `adopt` its kernels are recorded too, and its time does not count."""
        if message["adopt"]:
            return self._adopt(message["delay_us"])
        if self.device.type == "cuda":
            self.protocol.evict(())
        value, us, described = self.protocol.timed(self.forward, message["delay_us"], self._keep, self._ended)
        return {"us": us, "launch_us": self.protocol.launch_us} | described

    def _ended(self) -> None:
        self.channel.send({"ended": True})

    def _keep(self, value: Any) -> dict[str, Any]:
        self.outputs, described = self._describe(value)
        self.last_fingerprint = fingerprint(self._written())
        return described

    def _written(self) -> dict[str, torch.Tensor]:
        return self.outputs | {name: self.operands[name] for name in self.mutates}

    def retire(self, message: dict[str, Any]) -> dict[str, Any]:
        """What `arm` begins with, for a forward that changes operands: before the judge restores them."""
        return {"unchanged": self._retire()}

    def _adopt(self, delay_us: float) -> dict[str, Any]:
        if self.device.type != "cuda":
            self.session.adoption_begin()
            try:
                value = self.forward()
            finally:
                rows = self.session.adoption_end()
            return {"kernels": rows, "span_us": None} | self._keep(value)
        self.protocol.evict(())
        self.protocol.synchronize()
        if self.collector is None:
            return {"kernels": None, "span_us": None} | self._keep(self.forward())
        self.collector.start()
        try:
            self.protocol.delay(delay_us)
            value = self.forward()
            self.protocol.synchronize()
        finally:
            records = self.collector.stop()
        if self.collector.dropped or self.collector.untimed:
            return {"kernels": None, "span_us": None} | self._keep(value)
        records.sort(key=lambda r: r.start_ns)
        if records and "spin_kernel" in records[0].name:  # the protocol's own delay
            del records[0]
        rows = [{"name": r.name, "us": (r.end_ns - r.start_ns) / 1e3, "owner": self._owner(r)} for r in records]
        span = (max(r.end_ns for r in records) - min(r.start_ns for r in records)) / 1e3 if records else None
        return {"kernels": rows, "span_us": span} | self._keep(value)

    def _owner(self, record: Any) -> str:
        return "copy" if record.kind != "kernel" else self.session.owner(record.name)

    def batch(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whole rounds, for the judge's own clock: each call has its own place for operands and its own mailbox."""
        self._retire()
        places = message["places"]

        def call(i: int) -> Any:
            self.operands = self.places[places[i]]
            return self.forward()

        def keep(i: int, value: Any) -> None:
            put_by(value, self.mailboxes[i])

        mailed = keep if message["mailed"] else None
        value = self.protocol.batch(call, len(places), message["delay_us"], message["waiting"], mailed)
        self._ended()
        return self._keep(value)


def _laid(block: torch.Tensor, slots: list[dict], count: int, size: int) -> list[dict[str, torch.Tensor]]:
    """`count` sets of named tensors in a block, `size` bytes apart."""
    found = [Slot.from_json(slot) for slot in slots]
    return [{s.name: s.at(i * size).view(block) for s in found} for i in range(count)]


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _import(source: Path) -> Any:
    spec = importlib.util.spec_from_file_location("candidate", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module


def main(channel: Channel, spec: dict[str, Any], held: dict[str, Any]) -> None:
    """Answer orders until the judge is gone. A Python exception is an answer; anything worse ends the process."""
    os.chdir(spec["scratch"])
    os.environ["HOME"] = os.environ["TMPDIR"] = spec["scratch"]
    bench = Bench(spec)
    bench.channel = channel
    bench.wake()
    channel.send({"ready": held})  # said before any candidate code could say it otherwise
    orders = {name: getattr(bench, name) for name in ORDERS}
    awake = False
    while True:
        try:
            if awake:
                with contextlib.suppress(ChannelTimeout):
                    channel.await_frame(_STAY_AWAKE)
            message, fds = channel.receive(max_fds=64)
        except ChannelClosed:
            return
        # The next order is timed from outside: a process that has to be woken adds hundreds of microseconds.
        awake = message["op"] == "arm"
        bench.fds += fds
        try:
            answer = orders[message["op"]](message)
        except Interface as error:
            answer = {"interface": str(error)}
        except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is data for the judge
            answer = {"raised": type(error).__name__, "message": str(error)[:2000], "trace": _trace(error)}
        channel.send(answer)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-4000:]
