"""The performance gate: timed calls with fresh inputs, spot checks of their outputs, and the judge's own clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from atrex.evaluate import stats
from atrex.evaluate.answers import Adopted, Answer, Armed, Form, Forwarded, Hosted, Timed, read
from atrex.evaluate.bindings import Bindings, Refresher
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.correctness import check_interface, check_operands, expected
from atrex.evaluate.failures import UnitError, UnitFailure
from atrex.evaluate.noise import Watch
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.spawn import Worker
from atrex.evaluate.timing.protocol import Protocol
from atrex.problems.compare import compare
from atrex.problems.dtypes import Fp8Encoding
from atrex.problems.model import Problem, Shape
from atrex.scoring.records import Performance, Stage

LATE_SHARE = 0.1
PILOT_CALLS = 5
LONGER = 4  # times as long as the first delay is the one that tells a wait from a slow launch
HELD_BLOCKS = 16
ADOPTION_CALLS = 3
SPOT_CHECKS = 2
LOOK_EVERY = 25  # calls from one look at the sentinel to the next
KEPT_BYTES = 4 << 30
"""Operands and results that may wait to be verified."""


@dataclass
class Baseline:
    """What the protocol itself costs on this device, measured by the judge on work it trusts. Microseconds.

    `null_us`: a forward that does nothing. `floor_us`: an empty kernel (on the CPU the null forward). `round_trip_us`:
    the judge's outside time of a null forward in a worker, with a delay of `DELAY_US`, less the worker's own time of
    it: what every outside time contains beside the forward.
    """

    DELAY_US = 100.0

    null_us: float
    floor_us: float
    round_trip_us: float = 0.0
    round_trip_p90_us: float = 0.0
    round_trip_p10_us: float = 0.0


@dataclass
class Samples:
    """What was seen in the timed calls of one unit; `adopted` holds one list of kernel rows per adoption call.

    `waits`: forward waits for the device itself. Host time is then part of its time, and no delay hides it.
    """

    us: list[float] = field(default_factory=list)
    launch_us: list[float] = field(default_factory=list)
    outside_us: list[float] = field(default_factory=list)
    adopted: list[list[dict[str, Any]]] = field(default_factory=list)
    spans: list[float] = field(default_factory=list)
    host_us: float = 0.0
    delay_us: float = 0.0
    waits: bool = False

    @property
    def beside_us(self) -> list[float]:
        """What each call took from outside beyond what it says."""
        return [outside - us for outside, us in zip(self.outside_us, self.us, strict=True)]

    @property
    def late(self) -> float:
        """Share of the calls whose launch took longer than the delay that should cover it."""
        return sum(us > self.delay_us > 0 for us in self.launch_us) / max(len(self.launch_us), 1)

    @property
    def outlasts(self) -> bool:
        """Whether no call returns before its delay has passed, which is how a forward that waits shows."""
        return bool(self.launch_us) and stats.percentile(self.launch_us, 10) >= self.delay_us > 0


def first_delay_us(host_us: Sequence[float]) -> float:
    """A delay for calls whose launches have not been seen yet, from host times on an idle device. Microseconds."""
    return 2 * max(host_us) + 200.0


def covering_delay_us(launch_us: Sequence[float]) -> float:
    """The delay that covers launches like these. Microseconds."""
    return 1.5 * stats.median(launch_us) + 50.0


@dataclass
class Kept:
    """What a call gave, as the judge copied it, and when."""

    where: str
    inputs: Mapping[str, torch.Tensor]
    given: Mapping[str, torch.Tensor]
    answer: Forwarded | None = None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensors in (self.inputs, self.given) for tensor in tensors.values())


class Timing:
    """Times one bound unit. Every method raises UnitFailure, UnitError, Doubt, WorkerDied or WorkerTimeout."""

    def __init__(
        self,
        worker: Worker,
        bindings: Bindings,
        problem: Problem,
        shape: Shape,
        seeds: Seeds,
        budgets: Budgets,
        protocol: Protocol,
        baseline: Baseline,
        device: torch.device,
        fp8: Fp8Encoding,
        attempt: int = 0,
        form: Mapping[str, torch.Tensor] | None = None,
    ):
        """`form`: tensors of the outputs' form, as an earlier case of the unit had it; else a reference says it."""
        self.worker, self.bindings, self.problem, self.shape = worker, bindings, problem, shape
        self.budgets, self.protocol, self.baseline, self.device = budgets, protocol, baseline, device
        self.rng = seeds.rng(problem.operator, shape.id, "draws", attempt)
        # The judge stays awake only where it has a core of its own: on the CPU that core is the candidate's.
        self.spin = device.type != "cpu"
        self.place = 0
        unit_seed = seeds.seed(problem.operator, shape.id, "timed", attempt)
        self.fp8 = fp8
        inputs = problem.make_inputs(shape, unit_seed, device, fp8)
        form = form or expected(problem, shape, "timed", inputs, fp8).declared
        self.refresher = Refresher(inputs, unit_seed, problem.metadata.structured)
        self._kept: list[Kept] = []
        self._bind(inputs, form)

    def _bind(self, inputs: Mapping[str, torch.Tensor], form: Mapping[str, torch.Tensor]) -> None:
        most, mutates = Bindings.PLACES, self.problem.metadata.mutates
        self.bindings.bind(inputs, form, self.budgets.execution, most, mutates, most)
        self.bindings.write(self.refresher.inputs)
        laid = self.bindings.operands(self.bindings.places)
        laid[1:].copy_(laid[:1].expand_as(laid[1:]))
        # All memory that calls will hold is allocated now, while others may use the device, and not under their eyes.
        self._ask(Armed, {"op": "arm", "place": 0, "held": HELD_BLOCKS - 1})

    def limit(self, calls: int) -> float:
        return self.budgets.execution * calls + 5.0

    def _ask(self, form: type[Form], order: dict[str, Any], calls: int = 1) -> Form:
        return read(form, self.worker.ask(order, self.limit(calls)), "timed call")

    def arm(self) -> None:
        """New values, at a place drawn anew; the outputs of the last call must be as they were when it returned.

        Places change, the outputs' too, because what is remembered by address must be wrong, and because a kernel's
        time depends on where its operands and outputs lie.
        """
        if self.problem.metadata.mutates:
            self.still(self._ask(Armed, {"op": "retire"}))
        self.refresher.step()
        self.place = self.rng.randrange(self.bindings.places)
        self.bindings.write(self.refresher.inputs, self.place)
        held = self.rng.randrange(HELD_BLOCKS)
        self.still(self._ask(Armed, {"op": "arm", "place": self.place, "held": held}))

    @staticmethod
    def still(answer: Armed) -> None:
        if answer.unchanged is False:
            raise UnitFailure(Stage.RUNTIME, "integrity", "outputs of a timed call changed after forward had returned")

    # -- timed calls -----------------------------------------------------------------------------------------------

    def pilot(self, samples: Samples) -> float:
        """Host time and delay of this unit, and a first idea of its time in microseconds.

        The delay covers the launch as it is in a timed call, when the worker has just been woken, which takes longer
        than in a loop.
        """
        host = self._ask(Hosted, {"op": "pilot", "warm": 3, "count": 5}, calls=8).host_us
        samples.host_us = stats.median(host)
        first = self._first(first_delay_us(host))
        if first.outlasts:  # launches that were slow look like it; a wait outlasts any delay
            first = self._first(max(LONGER * first.delay_us, 2 * max(first.launch_us)))
        samples.waits = first.outlasts
        samples.delay_us = self.protocol.bounded(0.0 if samples.waits else covering_delay_us(first.launch_us))
        return stats.median(first.us)

    def _first(self, delay_us: float) -> Samples:
        """The first calls, behind a delay."""
        first = Samples(delay_us=self.protocol.bounded(delay_us))
        for _ in range(PILOT_CALLS):
            self.call(first, adopt=False)
        return first

    def call(self, samples: Samples, adopt: bool) -> None:
        """One timed (or adoption) call with inputs that no earlier call has seen."""
        self.arm()
        order = {"op": "timed", "adopt": adopt, "delay_us": samples.delay_us}
        answer, outside = self.worker.ask_timed(order, self.limit(1), self.spin)
        if adopt:
            self.last = adopted = read(Adopted, answer, "timed call")
            if adopted.kernels is not None:
                samples.adopted.append([kernel.model_dump() for kernel in adopted.kernels])
            if adopted.span_us is not None:
                samples.spans.append(adopted.span_us)
            return
        self.last = timed = read(Timed, answer, "timed call")
        samples.us.append(timed.us)
        samples.launch_us.append(timed.launch_us)
        samples.outside_us.append(outside)

    def spot_check(self) -> None:
        """Keep the outputs of the call that has just returned for `verify`. Raises UnitFailure."""
        self.bindings.clear()
        self._ask(Answer, {"op": "show"})
        check_operands("timed call", self.refresher.inputs, self.bindings, self.problem, self.place)
        inputs, given = (
            {name: tensor.clone() for name, tensor in tensors.items()}
            for tensors in (self.refresher.inputs, self.bindings.results(self.place))
        )
        self.keep(Kept("timed call", inputs, given, self.last))

    def keep(self, kept: Kept) -> None:
        """For `verify`: a reference takes longer than what is timed, and need not be computed on a device held alone.

        Where there is no room to wait, everything kept is verified at once.
        """
        self._kept.append(kept)
        if sum(k.nbytes for k in self._kept) > KEPT_BYTES:
            self.verify()

    def verify(self, seconds: float = math.inf) -> bool:
        """Compare what was kept, one or until the time is over; whether any is left. Raises UnitFailure, UnitError."""
        end = time.monotonic() + seconds
        while self._kept:
            one = self._kept.pop()
            case = expected(self.problem, self.shape, one.where, one.inputs, self.fp8)
            if one.answer is not None:
                check_interface(one.answer, case, self.problem)
            result = compare(self.problem, self.shape, case.inputs, case.oracle, case.declared, one.given)
            if not result.passed:
                seen = f"{result.output}{result.index or ''} is {result.got}, expected {result.expected}"
                reason = f"{one.where}: {seen}, although the same kernel passed every untimed case"
                raise UnitFailure(Stage.RUNTIME, "integrity", reason)
            if time.monotonic() >= end:
                break
        return bool(self._kept)

    def run(self, samples: Samples, count: int, watch: Watch) -> None:
        """`count` timed calls with adoption calls and spot checks at secretly drawn places, the sentinel among them."""
        schedule = [False] * count + [True] * ADOPTION_CALLS
        self.rng.shuffle(schedule)
        checked = set(self.rng.sample(range(len(schedule)), SPOT_CHECKS))
        for i, adopt in enumerate(schedule):
            if i % LOOK_EVERY == 0:
                watch.look()
            self.call(samples, adopt)
            if i in checked:
                self.spot_check()
        watch.look()
        self.arm()

    def run_in_time(self, samples: Samples, count: int, watch: Watch) -> Samples:
        """As `run`, once more with a longer delay if too many launches came after theirs had passed."""
        self.run(samples, count, watch)
        if samples.waits or samples.late <= LATE_SHARE:
            return samples
        longer = self.protocol.bounded(2 * stats.percentile(samples.launch_us, 90))
        again = Samples(host_us=samples.host_us, delay_us=longer)
        self.run(again, count, watch)
        return again

    def adopt_only(self, samples: Samples, calls: int = ADOPTION_CALLS) -> None:
        """Adoption of a unit that is not timed (wrong numbers, or over budget)."""
        self.pilot(samples)
        for _ in range(calls):
            self.call(samples, adopt=True)


def _nothing() -> None:
    return None


def summarize(
    samples: Samples,
    slope_us: float | None,
    method: str,
    clocks: dict[str, Any] | None,
    sentinel: dict[str, Any] | None,
) -> Performance:
    """The performance part of a record. Raises UnitError `unstable` when nothing usable was measured."""
    if not samples.us:
        raise UnitError("unstable", "no timed call was recorded", Stage.PERFORMANCE)
    median = stats.median(samples.us)
    return Performance(
        median_us=median,
        p10_us=stats.percentile(samples.us, 10),
        p90_us=stats.percentile(samples.us, 90),
        ci_us=stats.median_interval(samples.us),
        n=len(samples.us),
        kernel_us=stats.median(samples.spans) if samples.spans else None,
        host_us=samples.host_us,
        host_bound=samples.host_us > median if method == "events" else None,
        method=method,
        clocks=clocks,
        slope_us=slope_us,
        sentinel=sentinel,
    )


def measure_floor(protocol: Protocol, empty_kernel: Callable[[], Any] | None, calls: int = 100) -> tuple[float, float]:
    """(null_us, floor_us): medians of a forward that does nothing and of an empty kernel, under the protocol."""

    def median_of(call: Callable[[], Any]) -> float:
        call()
        # Long enough for two events to be queued as well, on a slow host too.
        delay = 1.5 * max(protocol.idle_host_us(call) for _ in range(5)) + Baseline.DELAY_US
        times = []
        for _ in range(calls):
            protocol.evict(())
            times.append(protocol.timed(call, delay)[1])
        return stats.median(times)

    null = median_of(_nothing)
    return null, median_of(empty_kernel) if empty_kernel else null
