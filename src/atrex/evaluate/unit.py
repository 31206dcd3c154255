"""Judging one unit, from candidate file to verdict: compile, correctness, performance."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from atrex.dsls import default_for
from atrex.errors import UserError
from atrex.evaluate.adoption import adoption, shortcut
from atrex.evaluate.answers import Artifacts, Forwarded, Loaded, read
from atrex.evaluate.bindings import Bindings
from atrex.evaluate.budgets import predicted_seconds
from atrex.evaluate.candidates import Candidate, static_fault
from atrex.evaluate.correctness import Case, Tally, cases, check_answer, expected
from atrex.evaluate.failures import Doubt, UnitError, UnitFailure, raised
from atrex.evaluate.noise import Watch
from atrex.evaluate.own_clock import OwnClock, slack_us
from atrex.evaluate.performance import Samples, Timing, summarize
from atrex.evaluate.readiness import Readiness, too_large
from atrex.evaluate.setup import Setup
from atrex.evaluate.shared_memory import CudaDriverError
from atrex.evaluate.spawn import Worker, WorkerDied, WorkerTimeout
from atrex.hardware.chip import Chip
from atrex.problems.model import Problem, Shape
from atrex.roofline.bound import published_roofline, roofline
from atrex.scoring.baselines import PRODUCTION, published
from atrex.scoring.records import (
    NO_DSL,
    Artifact,
    Compile,
    Performance,
    RooflineScore,
    Stage,
    Status,
    UnitRecord,
    Verdict,
)

CALM_SECONDS = 10.0  # how long a noisy device is waited for before a unit is measured again
LONG_SECONDS = 5.0  # predicted for a unit whose references are so long that one of them is used twice
TURN_SECONDS = 0.5  # of references after which a judge lets others have the device
KEPT_BLOCKS = 4 << 30  # bytes that a worker which is kept may share with the judge
_ANSWER_SLACK = 5.0  # seconds beyond a budget for the way there and back


@dataclass(frozen=True)
class Unit:
    """One (candidate, operator, shape)."""

    candidate: Candidate
    problem: Problem
    shape: Shape
    dsl: str
    held_out: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.candidate.name, self.problem.operator, self.shape.id


class UnitJudge:
    """The judge of one unit. `run` returns its record and never raises for what a candidate does."""

    def __init__(
        self, setup: Setup, unit: Unit, clocks: Any = None, *, readiness: bool = False, confirm: bool = False,
        fresh: bool = False,
    ):  # fmt: skip
        """`fresh`: in a worker that has judged no other unit, whatever the setup allows."""
        self.fresh = fresh or not setup.reuses
        self.setup, self.unit, self.clocks = setup, unit, clocks
        self.lease = setup.lease
        self.wants_readiness, self.wants_confirmation = readiness, confirm
        self.tally = Tally()
        self.stage = Stage.COMPILE
        self.compile: Compile | None = None
        self.confinement: Mapping[str, Any] | None = None
        self.samples = Samples()
        self.performance: Performance | None = None
        self.readiness: dict[str, Any] | None = None
        self.confirmed: Performance | None = None
        self.cold_start: float | None = None
        """Seconds of import and first forward in the second process; known with --confirm."""
        self.log = ""
        self.chip = setup.chip
        self.phases: dict[str, float] = {}
        self._form: dict[str, torch.Tensor] | None = None
        """The outputs' form, on no device; None for folders of others, whose outputs' sizes may depend on values."""
        self._known: Case | None = None
        """A case for readiness, kept where another reference takes long."""
        self._reused = False  # whether its worker has judged units of this candidate before
        self._may_keep = False  # whether its worker may go on with another one
        self._turn = ExitStack()
        self._waits = 0.0  # seconds for which others had the device
        self._begun = 0.0

    @contextmanager
    def _phase(self, name: str):
        started, waited = time.monotonic(), self._waits
        try:
            yield
        finally:
            took = time.monotonic() - started - (self._waits - waited)
            self.phases[name] = round(self.phases.get(name, 0.0) + took, 4)

    @contextmanager
    def _shared(self):
        """The device together with other judges; what it takes to get it is a phase of its own."""
        self._begin_turn()
        try:
            yield
        finally:
            self._end_turn()

    def _begin_turn(self) -> None:
        asked = time.monotonic()
        self._turn.enter_context(self.lease.shared())
        self._waited(asked)

    def _end_turn(self) -> None:
        if self.lease.crowded:  # nothing of this judge may still run while another times
            self.setup.protocol.synchronize()
        self._turn.close()

    def _aside(self, aside: bool) -> None:
        """The worker compiles: the device is for others meanwhile."""
        if aside:
            self._end_turn()
        else:
            self._turn.close()  # a worker that says so twice
            self._begin_turn()

    def _waited(self, asked: float) -> None:
        self._waits += time.monotonic() - asked
        self.phases["wait"] = round(self._waits, 4)

    def run(self) -> UnitRecord:
        """Judge it. What did not pass in a worker that had judged other units is judged again in a fresh one: only
        that counts. Where there was no room on a device that others use too, once more with their units away.
        """
        with self._room():
            record = self._run()
        if self._reused and record.verdict.status is not Status.PASSED:
            record = self._again()
        if self.lease.crowded and _wants_room(record):
            record = self._again(alone=True)
        return record

    def _again(self, alone: bool = False) -> UnitRecord:
        again = UnitJudge(
            self.setup, self.unit, self.clocks, readiness=self.wants_readiness, confirm=self.wants_confirmation,
            fresh=True,
        )  # fmt: skip
        with again._room(alone):
            return again._run()

    @contextmanager
    def _room(self, alone: bool = False):
        self._begun = time.monotonic()
        with self.lease.room(alone):
            self._waited(self._begun)
            try:
                yield
            finally:
                self._known = None
                self.setup.release()

    def _run(self) -> UnitRecord:
        try:
            self._static()
            doubt = None
            with self._worker(self.fresh) as (worker, bindings):
                try:
                    self._compile_and_correct(worker, bindings)
                    if not self.unit.held_out:
                        self.stage = Stage.PERFORMANCE
                        doubt = self._doubt(worker, bindings)
                    self._may_keep = doubt is None and not self.fresh and self._sound()
                except UnitFailure as failure:
                    if failure.category in ("numeric_mismatch", "over_budget"):
                        with self._shared():
                            self._adopt_anyway(worker, bindings)
                    raise
            if doubt:
                self._measure_again(doubt)
            if self.wants_confirmation and not self.unit.held_out:
                self._confirm()
            verdict = Verdict(status=Status.PASSED)
        except (UnitFailure, UnitError) as end:
            verdict = end.verdict()
        except UserError as fault:  # of the folder: candidates are refused before, or fail
            verdict = UnitError("folder", str(fault)).verdict()
        except (CudaDriverError, torch.OutOfMemoryError) as error:
            verdict = UnitError("unstable", f"the judge found no room on the device: {error}").verdict()
        return self._record(verdict, time.monotonic() - self._begun)

    # -- gates -----------------------------------------------------------------------------------------------------

    def _static(self) -> None:
        unit = self.unit
        forward = type(unit.problem.reference(unit.shape)).forward
        fault = static_fault(unit.candidate, forward, dict(unit.shape.init_kwargs))
        if fault:
            raise UnitFailure(Stage.COMPILE, *fault)

    @contextmanager
    def _worker(self, fresh: bool = True):
        """A worker for the candidate; however it ends, its end becomes a failure of the current stage."""
        with self._shared(), self._phase("spawn"):
            kept = self.setup.kept(self._key) if not fresh else None
            self._reused = kept is not None
            worker, bindings = kept or self._started()
        try:
            yield worker, bindings
        except WorkerTimeout:
            raise self._timeout() from None
        except WorkerDied as death:
            raise self._death(death) from None
        finally:
            with self._shared(), self._phase("close"):
                self._part(worker, bindings)
            self.log = worker.log

    def _started(self) -> tuple[Worker, Bindings]:
        try:
            worker = self.setup.spawn()
        except (WorkerDied, WorkerTimeout) as error:
            raise UnitError("unstable", f"no worker could be started: it {error or 'did not answer'}") from None
        return worker, Bindings(worker, self.setup.device)

    def _part(self, worker: Worker, bindings: Bindings) -> None:
        """End the worker, or keep it for the candidate's next unit."""
        keep, self._may_keep = self._may_keep and bindings.nbytes <= KEPT_BLOCKS, False
        try:
            if keep and worker.ask({"op": "renew"}, _ANSWER_SLACK) == {"renewed": True}:
                bindings.forget()
                self.setup.keep(self._key, worker, bindings)
                return
        except (WorkerDied, WorkerTimeout):
            pass
        worker.close()
        bindings.close()

    @property
    def _key(self) -> tuple[str, str]:
        return self.unit.candidate.sha256, self._instruments()

    def _sound(self) -> bool:
        """Whether readiness has left the process as it was: a capture that failed can leave the context unusable."""
        return self.readiness is None or self.readiness["graph_capturable"] is not False

    def _timeout(self) -> UnitFailure:
        budgets = self.setup.budgets
        if self.stage is Stage.COMPILE:
            return UnitFailure(Stage.COMPILE, "timeout_or_oom", f"did not compile within {budgets.compile:g} s")
        return UnitFailure(Stage.RUNTIME, "timeout", f"forward did not return within {budgets.execution:g} s")

    def _death(self, death: WorkerDied) -> UnitFailure:
        if self.stage is Stage.COMPILE:
            return UnitFailure(Stage.COMPILE, "timeout_or_oom" if death.oom else "exception", f"the worker {death.how}")
        return UnitFailure(Stage.RUNTIME, "exception", f"the worker {death.how}")

    def _load(self, worker: Worker) -> float:
        """Import the candidate in the worker; seconds that it took. Raises UnitFailure of the compile stage."""
        setup, candidate = self.setup, self.unit.candidate
        self.confinement = worker.held
        order = {"op": "load", "dsl": self._instruments(), "init_kwargs": dict(self.unit.shape.init_kwargs)}
        if not self._reused:
            # One cache per candidate file: private to it, shared by its units, so that nothing is compiled twice.
            source, cache = worker.place(candidate.sha256[:16], candidate.path.name, candidate.source)
            order |= {"source": str(source), "cache": str(cache)}
        # What is built here is built by the host: on a device the import takes nothing from a judge that times.
        with nullcontext() if setup.device.type == "cuda" else self._shared(), self._phase("load"):
            answer = worker.ask(order, setup.budgets.compile + _ANSWER_SLACK)
        if "not_a_module" in answer:
            raise UnitFailure(Stage.COMPILE, "not_a_module", str(answer["not_a_module"]))
        if "raised" in answer:
            raise UnitFailure(Stage.COMPILE, "exception", raised(answer))
        loaded = read(Loaded, answer, "import")
        self.setup.collector_fault = loaded.collector_fault
        return loaded.import_seconds

    def _instruments(self) -> str:
        """The DSL whose instruments the worker puts in; a baseline, which has none, gets the device's usual ones."""
        return self.unit.dsl if self.unit.dsl != NO_DSL else default_for(str(self.setup.device))

    def _compile_and_correct(self, worker: Worker, bindings: Bindings, purpose: str = "") -> None:
        """All cases. The device is let go between two of them, so that a judge that waits to time waits for one."""
        setup, unit = self.setup, self.unit
        found = cases(unit.problem, unit.shape, setup.seeds, setup.seed_count, setup.device, setup.fp8, purpose)
        sizes: set[tuple] = set()
        loaded: float | None = self._load(worker)
        for name, make in found:
            with self._shared():
                self._case(worker, bindings, name, make, sizes, loaded)
            loaded = None
        self.compile.artifacts = self._artifacts(worker)[0]

    def _case(
        self, worker: Worker, bindings: Bindings, name: str, make: Any, sizes: set[tuple], loaded: float | None
    ) -> None:
        """One case. `loaded`: seconds of the import before the first one; `sizes`: operand shapes seen so far."""
        setup, unit = self.setup, self.unit
        with self._phase("reference"):
            case = expected(unit.problem, unit.shape, name, make(), setup.fp8)
            bindings.synchronize()
        self._keep(case)
        limit = setup.budgets.execution + _ANSWER_SLACK
        with self._phase("bind"):
            mutates = unit.problem.metadata.mutates
            bindings.bind(case.inputs, case.declared, limit, mutates=mutates)
            bindings.write(case.inputs)
            bindings.clear()
        started, waited = time.monotonic(), self._waits
        size = tuple(tuple(t.shape) for t in case.inputs.values())
        if size not in sizes:  # another specialization may be compiled
            limit += setup.budgets.compile
            sizes.add(size)
        with self._phase("first_call" if self.compile is None else "call"):
            answer = self._call(worker, limit)
        took = (loaded or 0.0) + time.monotonic() - started - (self._waits - waited)
        if self.compile is None:
            self._gate_compile(worker, answer, took)
            self.stage = Stage.RUNTIME
        elif loaded is not None:  # a fresh process that finds its kernels built
            self.cold_start = took
        with self._phase("compare"):
            self._check(case, answer, bindings)

    @cached_property
    def _keeps_case(self) -> bool:
        if not self.wants_readiness or self.unit.held_out:
            return False
        work = self.unit.problem.work(self.unit.shape)
        return predicted_seconds(work) > LONG_SECONDS and not too_large(work)

    def _keep(self, case: Case) -> None:
        """What later stages need not compute again."""
        if not case.name.startswith("seed") or self.unit.problem.foreign:
            return
        if self._form is None:
            self._form = {name: torch.empty_like(t, device="meta") for name, t in case.declared.items()}
        if self._keeps_case:
            self._known = case

    def _call(self, worker: Worker, limit: float) -> dict[str, Any]:
        order = {"op": "call"}
        if self.lease.crowded and self.setup.device.type == "cuda":
            return worker.ask_aside(order, limit, self._aside)
        return worker.ask(order, limit)

    def _artifacts(self, worker: Worker) -> tuple[list[Artifact], list[str]]:
        found = worker.ask({"op": "artifacts"}, self.setup.budgets.execution + _ANSWER_SLACK)
        listed = read(Artifacts, found, "list of artifacts")
        return listed.artifacts, listed.missing

    def _gate_compile(self, worker: Worker, answer: dict[str, Any], seconds: float) -> None:
        """The compile gate on a device is the first real forward: each DSL kernel it launched has an artifact."""
        artifacts, missing = self._artifacts(worker)
        if "raised" in answer and not artifacts and _compiles(self.unit):
            raise UnitFailure(Stage.COMPILE, "exception", raised(answer))
        if missing and self.unit.dsl != NO_DSL:
            raise UnitFailure(
                Stage.COMPILE, "no_artifact", f"launched without a completed artifact: {', '.join(missing)}"
            )
        self.compile = Compile(seconds=seconds, artifacts=artifacts)

    def _check(self, case: Case, answer: dict[str, Any], bindings: Bindings) -> None:
        try:
            check_answer(read(Forwarded, answer, case.name), case, bindings, self.unit.problem)
        except UnitFailure:
            self.tally.fail(case.name)
            raise
        seeded = case.name.startswith("seed")
        if not self.tally.add(self.unit.problem, self.unit.shape, case, bindings.results(), seeded):
            raise self.tally.mismatch()

    # -- performance -----------------------------------------------------------------------------------------------

    def _timing(self, worker: Worker, bindings: Bindings, attempt: int) -> Timing:
        s, u = self.setup, self.unit
        return Timing(
            worker, bindings, u.problem, u.shape, s.seeds, s.budgets, s.protocol, s.baseline, s.device, s.fp8, attempt,
            self._form,
        )  # fmt: skip

    def _time(self, worker: Worker, bindings: Bindings, attempt: int = 0) -> None:
        setup = self.setup
        self.samples = Samples()
        with self._shared(), self._phase("prepare"):
            timing = self._timing(worker, bindings, attempt)
        watch = Watch(setup.sentinel)
        doubt = None
        asked = time.monotonic()
        with self.lease.exclusive():
            self._waited(asked)
            try:
                self._timed(timing, watch)
            except Doubt as found:
                doubt = found
        left = True
        while left:
            with self._shared(), self._phase("verify"):
                left = timing.verify(TURN_SECONDS)
        if doubt:
            raise doubt

    def _timed(self, timing: Timing, watch: Watch) -> None:
        setup, samples = self.setup, self.samples
        before = self.clocks() if self.clocks else None
        with self._phase("pilot"):
            pilot_us = timing.pilot(samples)
        count = setup.budgets.calls(pilot_us, setup.timed_calls)
        if count is None:
            raise UnitFailure(
                Stage.PERFORMANCE,
                "over_budget",
                f"a forward takes {pilot_us / 1e3:.1f} ms: {setup.budgets.MIN_CALLS} calls exceed the performance "
                f"budget of {setup.budgets.performance:g} s",
            )
        with self._phase("timed"):
            samples = self.samples = timing.run_in_time(samples, count, watch)
        after = self.clocks() if self.clocks else None
        noise = watch.noise(before, after)
        if noise:
            raise Doubt("unstable", noise)
        with self._phase("own_clock"):
            slope = OwnClock(timing, samples).agree()
        clocks = {"before": before, "after": after} if self.clocks else None
        self.performance = summarize(samples, slope, setup.protocol.method, clocks, watch.record())

    def _adopt_anyway(self, worker: Worker, bindings: Bindings) -> None:
        """Adoption for a unit whose numbers are wrong; what happens here changes no verdict."""
        self.samples = Samples()
        try:
            self._timing(worker, bindings, attempt=99).adopt_only(self.samples)
        except (UnitFailure, UnitError, WorkerDied, WorkerTimeout):
            self.samples.adopted.clear()

    def _doubt(self, worker: Worker, bindings: Bindings, attempt: int = 0) -> Doubt | None:
        """Time the unit; what speaks against the measurement, if anything does."""
        try:
            self._time(worker, bindings, attempt)
        except Doubt as doubt:
            return doubt
        bound = self._score(self.performance.median_us)
        if bound.S <= 1:
            self._probe(worker, bindings)
            return None
        return Doubt(
            "beyond_roofline", f"{self.performance.median_us:.2f} us is under the bound of {bound.roofline_us:.2f} us"
        )

    def _probe(self, worker: Worker, bindings: Bindings) -> None:
        """Readiness, once a unit. Nothing of it changes the verdict."""
        if not self.wants_readiness or self.readiness is not None:
            return
        setup, unit = self.setup, self.unit
        waits = self.samples.waits if setup.device.type == "cuda" else None
        probed = Readiness(
            worker, bindings, unit.problem, unit.shape, setup.seeds, setup.budgets, setup.device, setup.fp8,
            turn=self._turn_of_readiness, known=self._known,
        )  # fmt: skip
        self.readiness = probed.run(waits)

    @contextmanager
    def _turn_of_readiness(self):
        with self._shared(), self._phase("readiness"):
            yield

    def _confirm(self) -> None:
        """Everything once more in a fresh worker with new seeds; the score is then the second measurement's."""
        first = self.performance
        with self._worker() as (worker, bindings):
            self._compile_and_correct(worker, bindings, "confirm")
            doubt = self._doubt(worker, bindings, attempt=2)
        if doubt:
            self._measure_again(doubt, attempt=3)
        self.confirmed, self.performance = self.performance, first

    def _measure_again(self, first: Doubt, attempt: int = 1) -> None:
        """Once more in a fresh worker; on the CPU also against a fresh ceiling and a fresh round trip."""
        claim = self.performance.median_us if self.performance else None
        self.performance = None
        if first.category == "unstable" and self.setup.sentinel:
            self.setup.sentinel.wait_calm(CALM_SECONDS)
        if self.setup.device.type == "cpu":
            if first.category == "beyond_roofline":
                from atrex.hardware.calibrate import load_or_calibrate_cpu

                self.chip = self.setup.chip = load_or_calibrate_cpu(max_age=0)
            self.setup.refresh()
        with self._worker() as (worker, bindings):
            self._load(worker)
            second = self._doubt(worker, bindings, attempt)
        if second:
            raise second.outcome(first)
        self.performance.remeasured = first.reason
        judged = self.performance.slope_us
        events = self.setup.protocol.method == "events"
        if first.category == "beyond_roofline" and events and judged - claim > slack_us(claim):
            raise UnitFailure(
                Stage.RUNTIME,
                "integrity",
                f"{first.reason}; a fresh worker and the judge's clock say {judged:.2f} us",
            )

    # -- record ----------------------------------------------------------------------------------------------------

    def _bound(self, chip: Chip):
        return roofline(self.unit.problem.work(self.unit.shape), chip)

    def _score(self, median_us: float | None, scored: bool = True) -> RooflineScore:
        bound = self._bound(self.chip)
        floor = self.setup.baseline.floor_us
        calibrated = self._bound(self.setup.calibrated).us if self.setup.calibrated else None
        s = bound.us / median_us if median_us and scored else None
        published = self._published_us()
        return RooflineScore(
            roofline_us=bound.us,
            bound=bound.bound,
            floor_us=floor,
            S=s,
            attainable_S=max(bound.us, floor) / median_us if s is not None else None,
            calibrated_us=calibrated,
            calibrated_S=calibrated / median_us if calibrated and s is not None else None,
            published_us=published,
            published_S=published / median_us if published and s is not None else None,
            uncertainty=self.chip.uncertainty,
        )

    def _published_us(self) -> float | None:
        """The paper's own ceiling on this chip, for published shapes."""
        problem, shape = self.unit.problem, self.unit.shape
        work = problem.published_work(shape)
        if work is None or problem.metadata.dtype is None or self.setup.device.type == "cpu":
            return None
        return published_roofline(*work, problem.metadata.dtype, self.chip)

    def _confirmation(self) -> dict[str, Any] | None:
        if self.confirmed is None:
            return None
        return self.confirmed.model_dump(mode="json") | {"cold_start_seconds": self.cold_start}

    def _record(self, verdict: Verdict, seconds: float) -> UnitRecord:
        unit, setup = self.unit, self.setup
        passed = verdict.status is Status.PASSED
        correct = passed or verdict.category in ("over_budget", "beyond_roofline", "unstable")
        found = adoption(self.samples.adopted, host=setup.device.type == "cpu")
        origin = unit.candidate.origin
        if origin:
            seen = found.kernels if found and setup.device.type == "cuda" else []
            origin, found = origin.model_copy(update={"kernels": seen}), None
        verdict.shortcut = shortcut(found)
        scored = self.confirmed or self.performance
        median = scored.median_us if scored else None
        ran = self.compile is not None
        meta = unit.problem.metadata.shapes.get(unit.shape.id)
        failed = verdict.status in (Status.FAILED, Status.ERROR)
        production = meta.production.get(self.chip.id) if meta else None
        return UnitRecord(
            candidate=unit.candidate.name,
            candidate_sha256=unit.candidate.sha256,
            operator=unit.problem.operator,
            shape=unit.shape.id,
            origin=meta.origin if meta else "atrex",
            held_out=unit.held_out,
            device=str(setup.device),
            chip=self.chip.id,
            dsl=unit.dsl,
            verdict=verdict,
            confinement=dict(self.confinement) if self.confinement else None,
            compile=self.compile,
            correctness=self.tally.record(correct) if ran else None,
            performance=self.performance if correct else None,
            readiness=self.readiness,
            confirm=self._confirmation(),
            baseline=origin,
            baselines={PRODUCTION: production.us} if production else None,
            production=published(production.backend) if production else None,
            roofline=None if unit.held_out else self._score(median, scored=passed),
            adoption=found,
            seconds=seconds,
            phases=self.phases,
            log=self.log[-2000:] if failed and self.log else None,
        )


def _wants_room(record: UnitRecord) -> bool:
    """Whether the judge or the candidate found the device's memory full."""
    reason = (record.verdict.reason or "").lower()
    return "out of memory" in reason or "outofmemory" in reason or "no room on the device" in reason


def _compiles(unit: Unit) -> bool:
    """Whether the candidate's own imports say that it compiles something."""
    from atrex import dsls

    return dsls.infer(unit.candidate.source) is not None
