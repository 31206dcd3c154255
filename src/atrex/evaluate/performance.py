"""The performance gate: timed calls with fresh inputs, spot checks of their outputs, and the judge's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from atrex.evaluate import stats
from atrex.evaluate.bindings import Bindings, Refresher
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.correctness import Case, check_answer, expected
from atrex.evaluate.failures import UnitError, UnitFailure, raised
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.spawn import Worker
from atrex.evaluate.timing.protocol import Protocol
from atrex.problems.compare import compare
from atrex.problems.model import Problem, Shape
from atrex.scoring.records import Performance, Stage

ADOPTION_CALLS = 3
SPOT_CHECKS = 2
_SLOPE_ROUNDS = 3
_SLOPE_TRIES = 3
_SLOPE_ROUND_SECONDS = 0.01  # device work in the longer batch beyond the shorter one


@dataclass
class Baseline:
    """What the protocol itself costs on this device, measured by the judge on work it trusts. Microseconds.

    `null_us`: a forward that does nothing. `floor_us`: an empty kernel (on the CPU the null forward). `round_trip_us`
    (CPU): the judge's outside time of a null forward less the worker's, which every outside time contains.
    """

    null_us: float
    floor_us: float
    round_trip_us: float | None = None
    round_trip_p90_us: float | None = None


@dataclass
class Samples:
    """What was seen in the timed calls of one unit; `adopted` holds one list of kernel rows per adoption call."""

    us: list[float] = field(default_factory=list)
    outside_us: list[float] = field(default_factory=list)
    adopted: list[list[dict[str, Any]]] = field(default_factory=list)
    spans: list[float] = field(default_factory=list)
    host_us: float = 0.0
    delay_us: float = 0.0


class Timing:
    """Times one bound unit. Every method raises UnitFailure, UnitError, WorkerDied or WorkerTimeout."""

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
        attempt: int = 0,
    ):
        self.worker, self.bindings, self.problem, self.shape = worker, bindings, problem, shape
        self.budgets, self.protocol, self.baseline, self.device = budgets, protocol, baseline, device
        self.rng = seeds.rng(problem.operator, shape.id, "draws", attempt)
        self.mutates = tuple(problem.metadata.mutates)
        unit_seed = seeds.seed(problem.operator, shape.id, "timed", attempt)
        inputs = problem.make_inputs(shape, unit_seed, device)
        first = expected(problem, shape, "timed", inputs)
        self.refresher = Refresher(inputs, unit_seed)
        self._ask_bind(inputs, first)

    def _ask_bind(self, inputs, case: Case) -> None:
        self.bindings.bind(inputs, case.declared, self.budgets.execution)
        self.bindings.write(self.refresher.inputs)

    def _ask(self, order: dict[str, Any], calls: int = 1) -> dict[str, Any]:
        answer = self.worker.ask(order, self.budgets.execution * calls + 5.0)
        if "raised" in answer:
            raise UnitFailure(Stage.RUNTIME, "exception", f"timed call: {raised(answer)}")
        if "interface" in answer:
            raise UnitFailure(Stage.RUNTIME, "interface", str(answer["interface"]))
        return answer

    def _number(self, answer: dict[str, Any], key: str) -> float:
        value = answer.get(key)
        if not isinstance(value, (int, float)) or not value >= 0:
            raise UnitFailure(Stage.RUNTIME, "integrity", f"the worker reported {key} = {value!r}")
        return float(value)

    # -- timed calls -----------------------------------------------------------------------------------------------

    def pilot(self, samples: Samples) -> float:
        """Host time and delay of this unit, and a first idea of its time in microseconds."""
        answer = self._ask({"op": "pilot", "warm": 3, "count": 5}, calls=13)
        host, us = answer["host_us"], answer["us"]
        samples.host_us = stats.median(host)
        samples.delay_us = 1.5 * max(host) + 10.0
        return stats.median(us)

    def call(self, samples: Samples, adopt: bool) -> None:
        """One timed (or adoption) call with inputs that no earlier call has seen."""
        self.refresher.step()
        self.bindings.write(self.refresher.inputs)
        armed = self._ask({"op": "arm"})
        if armed["unchanged"] is False:
            raise UnitFailure(Stage.RUNTIME, "integrity", "outputs of a timed call changed after forward had returned")
        started = time.perf_counter_ns()
        answer = self._ask({"op": "timed", "adopt": adopt, "delay_us": samples.delay_us})
        outside = (time.perf_counter_ns() - started) / 1e3
        if adopt:
            samples.adopted.append(answer["kernels"])
            if answer["span_us"] is not None:
                samples.spans.append(self._number(answer, "span_us"))
        else:
            samples.us.append(self._number(answer, "us"))
            samples.outside_us.append(outside)
        self._last = answer

    def spot_check(self) -> None:
        """Ask for the outputs of the call that has just returned, and compare them. Raises UnitFailure."""
        self._ask({"op": "show"})
        case = expected(self.problem, self.shape, "timed call", self.refresher.inputs)
        check_answer(self._last, case, self.bindings, self.mutates)
        result = compare(
            self.problem, self.shape, case.inputs, case.oracle, case.declared, self.bindings.views("outputs")
        )
        if not result.passed:
            raise UnitFailure(
                Stage.RUNTIME,
                "integrity",
                f"a timed call gave a wrong {result.output}{result.index or ''}: {result.got}, expected "
                f"{result.expected}, although the same kernel passed every untimed case",
            )

    def run(self, samples: Samples, count: int) -> None:
        """`count` timed calls with adoption calls and spot checks at secretly drawn places among them."""
        schedule = [False] * count + [True] * ADOPTION_CALLS
        self.rng.shuffle(schedule)
        checked = set(self.rng.sample(range(len(schedule)), SPOT_CHECKS))
        for i, adopt in enumerate(schedule):
            self.call(samples, adopt)
            if i in checked:
                self.spot_check()
        armed = self._ask({"op": "arm"})
        if armed["unchanged"] is False:
            raise UnitFailure(Stage.RUNTIME, "integrity", "outputs of a timed call changed after forward had returned")

    def adopt_only(self, samples: Samples, calls: int = 2) -> None:
        """Adoption of a unit that is not timed (wrong numbers, or over budget)."""
        self.pilot(samples)
        for _ in range(calls):
            self.call(samples, adopt=True)

    # -- the judge's own clock -------------------------------------------------------------------------------------

    def _batch(self, count: int, delay_us: float) -> float:
        started = time.perf_counter()
        self._last = self._ask({"op": "batch", "count": count, "delay_us": delay_us}, calls=count)
        return (time.perf_counter() - started) * 1e6

    def _null_batch(self, count: int, delay_us: float) -> float:
        started = time.perf_counter()
        self.protocol.batch(_nothing, count, delay_us, ())
        return (time.perf_counter() - started) * 1e6

    def slope(self, claim_us: float, delay_us: float) -> float:
        """Microseconds per call by the judge's clock: slope over secretly drawn batch sizes, less the null's."""
        per_round = claim_us + delay_us + 100.0
        extra = max(2, min(60, int(_SLOPE_ROUND_SECONDS * 1e6 / per_round)))
        slopes = []
        for _ in range(_SLOPE_ROUNDS):
            few = self.rng.randint(1, 3)
            many = few + extra + self.rng.randint(0, 2)
            self.refresher.step()
            self.bindings.write(self.refresher.inputs)
            theirs = -self._batch(few, delay_us) + self._batch(many, delay_us)
            ours = -self._null_batch(few, delay_us) + self._null_batch(many, delay_us)
            slopes.append((theirs - ours) / (many - few))
        return stats.median(slopes) + self.baseline.null_us

    def agree(self, samples: Samples) -> float:
        """The judge's time of a call. Raises UnitFailure `integrity` when it contradicts the worker's median.

        On a device the slope must lie within max(2 us, 10 %) of the median. On the CPU the batches run with warm
        caches, so the slope bounds the claim from below, and the outside clock of every call bounds it from above.
        """
        claim = stats.median(samples.us)
        check = self._contradiction if self.protocol.method == "events" else self._host_contradiction
        seen = None
        for _ in range(_SLOPE_TRIES):
            seen, wrong = check(samples, claim)
            if wrong is None:
                self.spot_check()
                return seen
        raise UnitFailure(Stage.RUNTIME, "integrity", f"{wrong}, in {_SLOPE_TRIES} tries of {_SLOPE_TRIES}")

    def _contradiction(self, samples: Samples, claim: float) -> tuple[float, str | None]:
        seen = self.slope(claim, samples.delay_us)
        if abs(seen - claim) <= max(2.0, 0.10 * claim):
            return seen, None
        return seen, f"the worker's median is {claim:.2f} us, the judge's own clock says {seen:.2f} us"

    def _host_contradiction(self, samples: Samples, claim: float) -> tuple[float, str | None]:
        seen = self.slope(claim, 0.0)
        if claim < 0.9 * seen - 2.0:
            return seen, f"the worker's median is {claim:.2f} us cold, the judge's clock says {seen:.2f} us warm"
        outside = stats.median(samples.outside_us) - self.baseline.round_trip_us
        slack = max(2 * self.baseline.round_trip_p90_us, 0.10 * claim)
        if outside > claim + slack:
            return seen, f"the worker's median is {claim:.2f} us, the judge's outside clock says {outside:.2f} us"
        return seen, None


def _nothing() -> None:
    return None


def summarize(samples: Samples, slope_us: float | None, method: str, clocks: dict[str, Any] | None) -> Performance:
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
        host_bound=samples.host_us > median,
        method=method,
        clocks=clocks,
        slope_us=slope_us,
    )


def measure_floor(protocol: Protocol, empty_kernel: Callable[[], Any] | None, calls: int = 100) -> tuple[float, float]:
    """(null_us, floor_us): medians of a forward that does nothing and of an empty kernel, under the protocol."""

    def median_of(call: Callable[[], Any]) -> float:
        call()
        delay = 1.5 * max(protocol.idle_host_us(call) for _ in range(5)) + 10.0
        times = []
        for _ in range(calls):
            protocol.evict(())
            times.append(protocol.timed(call, delay)[1])
        return stats.median(times)

    null = median_of(_nothing)
    return null, median_of(empty_kernel) if empty_kernel else null
