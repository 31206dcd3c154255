"""Readiness: what an engine asks of a kernel beside right numbers in little time, shown by doing it once.

The worker does what the judge orders, the judge compares what comes of it with its own expected outputs. Nothing here
changes a verdict: a unit that has passed stays passed, and a property that could not be tried is None.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from atrex.evaluate.answers import Answer, Forwarded, read
from atrex.evaluate.bindings import Bindings
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.correctness import Case, check_answer, expected
from atrex.evaluate.failures import UnitError, UnitFailure
from atrex.evaluate.layout import raw_words
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.spawn import Worker, WorkerDied, WorkerTimeout
from atrex.problems.compare import compare
from atrex.problems.dtypes import Fp8Encoding
from atrex.problems.model import Problem, Shape
from atrex.roofline.work import Work
from atrex.scoring.readiness import PROPERTIES

AT_MOST = 4 << 30
"""Bytes of reads and writes beyond which a unit is not probed: two sets of operands and results would not fit."""


def too_large(work: Work) -> bool:
    """Whether a unit is not probed."""
    return work.total_bytes > AT_MOST


class Workspace(Answer):
    bytes: int


class Elsewhere(Answer):
    devices: int
    right_device: bool = True


class Readiness:
    """Tries one passed unit, in the worker that ran it. `run` never raises for what a candidate does."""

    def __init__(
        self, worker: Worker, bindings: Bindings, problem: Problem, shape: Shape, seeds: Seeds, budgets: Budgets,
        device: torch.device, fp8: Fp8Encoding, turn: Callable[[], AbstractContextManager[None]] = nullcontext,
        known: Case | None = None,
    ):  # fmt: skip
        """`turn` is entered for every use of the device, one probe at a time: others may have it in between.

        `known`: a case of the unit whose reference was computed before. It is the second one here, which is never asked
        for alone: its outputs could be remembered.
        """
        self.worker, self.bindings, self.problem, self.shape = worker, bindings, problem, shape
        self.budgets, self.device, self._turn = budgets, device, turn
        self.found: dict[str, Any] = dict.fromkeys((*PROPERTIES, "workspace_bytes"))
        self.why: dict[str, str] = {}
        unit = f"{problem.operator}/{shape.id}"
        self._cases: list[Case] = []
        self.too_large = too_large(problem.work(shape))
        if self.too_large:
            return
        for i in range(1 if known else 2):
            with turn():
                inputs = problem.make_inputs(shape, seeds.seed(unit, "ready", i), device, fp8)
                self._cases.append(expected(problem, shape, f"ready{i}", inputs, fp8))
        if known:
            self._cases.append(known)

    def run(self, waits: bool | None) -> dict[str, Any]:
        """The properties by name: True, False, or None where nothing was shown; `why` says what went wrong.

        `waits`: whether the timed calls have shown that forward waits for the device; None on the CPU.
        """
        if waits is not None:
            self.found["no_host_sync"] = not waits
        if self.too_large:
            self.why["too_large"] = f"more than {AT_MOST >> 30} GiB of operands: not probed"
            return self.found | {"why": self.why}
        first = self._cases[0]
        if any(t.numel() > 2**31 for t in [*first.inputs.values(), *first.declared.values()]):
            self.found["large_offsets"] = True  # the unit has passed
        probes: list[tuple[str, Callable[[], Any]]] = [("bitwise_repeatable", self._repeat)]
        if self.device.type == "cuda":
            probes += [
                ("workspace_bytes", self._workspace),
                ("own_stream", self._stream),
                ("concurrent", self._concurrent),
                ("other_device", self._other_device),
                ("graph_capturable", self._graph),  # last: a capture that fails can leave the context unusable
            ]
        try:
            with self._turn():
                self._bind()
            for name, probe in probes:
                try:
                    with self._turn():
                        self.found[name] = probe()
                except (UnitFailure, UnitError) as failure:
                    self.found[name] = False
                    self.why[name] = str(failure)[:300]
        except (WorkerDied, WorkerTimeout) as end:
            failed = next((name for name, _ in probes if self.found[name] is None), None)
            if failed:
                self.found[failed] = False
                self.why[failed] = f"the worker {end if isinstance(end, WorkerDied) else 'did not answer in time'}"
        return self.found | {"why": self.why}

    # -- probes ----------------------------------------------------------------------------------------------------

    def _repeat(self) -> bool:
        seen = []
        for _ in range(2):
            self._lay(self._cases[0])
            self._right(self._ask({"op": "call"}), self._cases[0])
            seen.append({name: t.clone() for name, t in self.bindings.results().items()})
        one, two = seen
        differing = [name for name in one if not torch.equal(raw_words(one[name]), raw_words(two[name]))]
        if differing:
            self.why["bitwise_repeatable"] = f"output {', '.join(differing)} differs between two calls"
        return not differing

    def _workspace(self) -> int:
        self._lay(self._cases[0])
        return read(Workspace, self._ask({"op": "probe", "probe": "workspace"}), "workspace").bytes

    def _stream(self) -> bool | None:
        if self.bindings.places < 2:
            return None
        self._lay(self._cases[0], 0)
        self._lay(self._cases[1], 1)
        return self._right(self._ask({"op": "probe", "probe": "stream"}), self._cases[1])

    def _concurrent(self) -> bool | None:
        if self.bindings.places < 2:
            return None
        for place in range(2):
            self._lay(self._cases[place], place)
        for place in range(2):
            answer = self._ask({"op": "probe", "probe": "concurrent", "shown": place})
            self._right(answer, self._cases[place], place)
        return True

    def _other_device(self) -> bool | None:
        self._lay(self._cases[0])
        answer = self._ask({"op": "probe", "probe": "other_device"})
        elsewhere = read(Elsewhere, answer, "other device")
        if elsewhere.devices < 2:
            return None
        self._values(self._cases[0])
        if not elsewhere.right_device:
            self.why["other_device"] = "outputs are not on the operands' device"
        return elsewhere.right_device

    def _graph(self) -> bool:
        self._lay(self._cases[0])
        captured = read(Forwarded, self._ask({"op": "probe", "probe": "capture"}), "graph capture")
        self._lay(self._cases[1])
        self._ask({"op": "probe", "probe": "replay"})
        check_answer(captured, self._cases[1], self.bindings, self.problem)
        return self._values(self._cases[1])

    # -- parts -----------------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        case = self._cases[0]
        places = 2 if self.device.type == "cuda" else 1
        self.bindings.bind(case.inputs, case.declared, self.budgets.execution, places, self.problem.metadata.mutates)

    def _lay(self, case: Case, place: int = 0) -> None:
        self.bindings.write(case.inputs, place)
        self.bindings.clear()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        answer = self.worker.ask(order, self.budgets.execution + self.budgets.compile)
        read(Answer, answer, order.get("probe", "call"))
        return answer

    def _right(self, answer: dict[str, Any], case: Case, place: int = 0) -> bool:
        check_answer(read(Forwarded, answer, case.name), case, self.bindings, self.problem, place)
        return self._values(case, place)

    def _values(self, case: Case, place: int = 0) -> bool:
        got = self.bindings.results(place)
        result = compare(self.problem, self.shape, case.inputs, case.oracle, case.declared, got)
        if not result.passed:
            raise UnitError("readiness", f"{result.output}{result.index or ''} is {result.got}, not {result.expected}")
        return True
