"""One process of sweep.py: checks variants beside the others and times them alone, on operands that it makes once."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from atrex.evaluate.correctness import Case, expected
from atrex.evaluate.lease import Lease
from atrex.evaluate.performance import covering_delay_us, first_delay_us
from atrex.evaluate.timing import protocol_for
from atrex.outputs import by_name
from atrex.problems.compare import compare
from atrex.problems.load import load_suite
from atrex.problems.model import Problem, Shape

SEED = 1
CALLS, FEWEST_CALLS, ENOUGH_US = 30, 8, 4e5
KEPT_BYTES = 6 << 30
"""Operands and expected outputs that a process keeps for its next variants."""
MUCH = 1 << 30
"""Bytes of a shape whose reference is computed while no other of that size is: it needs several times as much."""


@dataclass
class Operands:
    """Inputs and expected outputs of one shape, and what a forward gets: operands that it changes are copies."""

    case: Case
    given: dict[str, Any]
    mutates: tuple[str, ...]

    def restore(self) -> None:
        for name in self.mutates:
            self.given[name].copy_(self.case.inputs[name])

    def results(self, value: Any) -> dict[str, Any]:
        """What a forward gave, by name, with the operands that it had to change."""
        returned = [name for name in self.case.declared if name not in self.mutates]
        return by_name(value, returned)[1] | {name: self.given[name] for name in self.mutates}

    @property
    def nbytes(self) -> int:
        parts = (self.case.inputs, self.case.oracle, self.case.declared)
        return sum(tensor.nbytes for tensors in parts for tensor in tensors.values())


class Bench:
    """Checks and times units; `say` tells the parent which step comes."""

    def __init__(self, device: str, lease: Path, say: Callable[[str], None]):
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.device, self.say, self.lease = torch.device(device), say, Lease(lease)
        self.kept: OrderedDict[tuple[str, str], Operands] = OrderedDict()
        self.modules: dict[str, Any] = {}
        self.held: ExitStack | None = None
        spec = {}
        if self.device.type == "cpu":
            from atrex.hardware import native

            sweep = 0 if native.atrex_flush_supported() else 128 << 20
            spec = {"flush_library": str(native.build()), "sweep_bytes": sweep}
        else:
            torch.set_num_threads(1)
            self._compile_aside()
        self.protocol = protocol_for(self.device, spec)

    def about(self) -> dict[str, str]:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return {"device": name, "torch": torch.__version__}

    def _compile_aside(self) -> None:
        """Leave the device to others while Triton compiles: JIT functions take `compile` from there when launched."""
        from triton import compiler

        build = compiler.compile

        def aside(*args: Any, **kwargs: Any) -> Any:
            if self.held is None:
                return build(*args, **kwargs)
            self.protocol.synchronize()
            self.held.close()
            self.say("compiling")
            try:
                return build(*args, **kwargs)
            finally:
                self._enter()

        compiler.compile = aside

    def _enter(self) -> None:
        self.say("waiting")
        self.held.enter_context(self.lease.shared())
        self.say(self.step)

    @contextmanager
    def together(self, step: str) -> Iterator[None]:
        """The device, with others."""
        self.step, self.held = step, ExitStack()
        try:
            self._enter()
            yield
            self.protocol.synchronize()
        finally:
            self.held.close()
            self.held = None

    def operands(self, problem: Problem, shape: Shape) -> Operands:
        key = (problem.operator, shape.id)
        if key not in self.kept:
            self.say("waiting")
            much = problem.work(shape).total_bytes > MUCH
            with self.lease.room(alone=True) if much else nullcontext(), self.together("reference"):
                drawn = problem.make_inputs(shape, SEED, self.device)
                inputs = {name: tensor.contiguous() for name, tensor in drawn.items()}
                case = expected(problem, shape, f"seed {SEED}", inputs, "e4m3fn")
                mutates = tuple(name for name in case.declared if name in problem.metadata.mutates)
                given = inputs | {name: inputs[name].clone() for name in mutates}
                self.kept[key] = Operands(case, given, mutates)
                self.free()
        self.kept.move_to_end(key)
        while len(self.kept) > 1 and sum(kept.nbytes for kept in self.kept.values()) > KEPT_BYTES:
            self.kept.popitem(last=False)
        return self.kept[key]

    def free(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def measure(self, problem: Problem, shape: Shape, path: str) -> dict[str, Any]:
        """`status` passed, failed or raised, with `detail`, and times in microseconds of what passed."""
        for first in (True, False):
            try:
                return self._measure(problem, shape, path)
            except torch.OutOfMemoryError as error:
                fault = error
                self.kept.clear()
                self.free()
            except Exception as error:  # noqa: BLE001 - a variant may raise anything, and so may the compiler
                fault = error
                break
            if not first:
                break
        self.kept.pop((problem.operator, shape.id), None)
        detail = " ".join(f"{type(fault).__name__}: {fault}".split())
        return {"status": "raised", "detail": detail if len(detail) < 300 else f"{detail[:100]} ... {detail[-200:]}"}

    def _measure(self, problem: Problem, shape: Shape, path: str) -> dict[str, Any]:
        operands = self.operands(problem, shape)
        model = self._module(path).Model(**shape.init_kwargs).to(self.device).eval()
        with self.together("forward"):
            operands.restore()
            # What an earlier variant left in the allocator's blocks must not pass for this one's outputs.
            sizes = [tensor.nbytes for tensor in operands.case.declared.values()]
            stale = [torch.full((size,), 255, dtype=torch.uint8, device=self.device) for size in sizes]
            del stale
            outputs = operands.results(model(*operands.given.values()))
        if fault := self._fault(problem, shape, operands, outputs):
            return fault
        self.say("waiting")
        with self.lease.exclusive():
            self.say("timing")
            outputs, us = self._times(operands, lambda: model(*operands.given.values()), [*outputs.values()])
            self.protocol.synchronize()
        if fault := self._fault(problem, shape, operands, operands.results(outputs)):
            return fault | {"detail": f"timed call: {fault['detail']}"}
        spread = statistics.quantiles(us, n=10)
        return {"status": "passed", "us": statistics.median(us), "p10": spread[0], "p90": spread[-1], "n": len(us)}

    def _fault(self, problem: Problem, shape: Shape, operands: Operands, outputs: dict[str, Any]) -> dict | None:
        """How outputs are not what they should be, if so; inputs are then made anew: who knows what was written."""
        case = operands.case
        with self.together("comparing"):
            found = compare(problem, shape, case.inputs, case.oracle, case.declared, outputs)
        if found.passed:
            return None
        self.kept.pop((problem.operator, shape.id), None)
        where = f"{found.output}{found.index or ''} is {found.got}, expected {found.expected}"
        detail = f"{where} ({found.worst:.3g} of the bound){': ' + found.detail if found.detail else ''}"
        return {"status": "failed", "detail": detail}

    def _times(self, operands: Operands, forward: Callable[[], Any], outputs: list) -> tuple[Any, list[float]]:
        """The last outputs and the times of calls as the judge makes them: delay from a pilot, cold cache."""
        protocol = self.protocol
        protocol.warm_up()

        def calls(count: int, delay_us: float) -> tuple[Any, list[float], list[float]]:
            us, launches = [], []
            for _ in range(count):
                operands.restore()
                protocol.evict([*operands.given.values(), *outputs])
                protocol.synchronize()
                value, took, _ = protocol.timed(forward, delay_us)
                us.append(took)
                launches.append(protocol.launch_us)
            return value, us, launches

        for _ in range(2):
            forward()
        host_us = [protocol.idle_host_us(forward) for _ in range(3)]
        _, us, launches = calls(4, first_delay_us(host_us))
        count = int(min(CALLS, max(FEWEST_CALLS, ENOUGH_US / statistics.median(us))))
        return calls(count, protocol.bounded(covering_delay_us(launches)))[:2]

    def _module(self, path: str) -> Any:
        if path not in self.modules:
            self.say("compiling")  # a C++ or CUDA source is compiled on import
            spec = importlib.util.spec_from_file_location(f"variant_{len(self.modules)}", path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            self.modules[path] = module
        return self.modules[path]

    def lost(self) -> bool:
        """Whether a variant has left this process without a device, as a wrong address does."""
        try:
            self.protocol.synchronize()
        except Exception:  # noqa: BLE001
            return True
        return False


def work(pipe: connection.Connection, device: str, lease: Path) -> None:
    """Measure what comes through the pipe, until None does or nobody is at its other end."""
    suite = load_suite()
    try:
        bench = Bench(device, lease, lambda step: pipe.send(("step", step)))
        pipe.send(("ready", bench.about()))
        while (order := pipe.recv()) is not None:
            unit, path = order
            problem = suite.problem(unit.operator)
            result = bench.measure(problem, problem.shape(unit.shape), path)
            pipe.send(("lost" if bench.lost() else "done", result))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
